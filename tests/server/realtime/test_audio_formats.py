"""G.711 and PCM decoding against ffmpeg, and resampling in chunks."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

from audio.media_files import Int16Samples
from choral.audio.resample import LiveResampler
from choral.server.api_errors import ApiError
from choral.server.realtime.audio_formats import FormatType, decode_samples, g711_table


@pytest.mark.parametrize(("format_type", "codec"), [("audio/pcmu", "mulaw"), ("audio/pcma", "alaw")])
def test_g711_decodes_as_in_ffmpeg(format_type: FormatType, codec: str) -> None:
    data = bytes(range(256)) * 8
    with av.open(io.BytesIO(data), format=codec, options={"sample_rate": "8000"}) as container:
        expected = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert decode_samples(format_type, data).tolist() == expected.tolist()
    assert g711_table(format_type).dtype == np.int16


@pytest.mark.parametrize("rate", [24_000, 16_000, 8_000])
def test_resampling_does_not_depend_on_chunk_size(rate: int, jfk_samples: Int16Samples) -> None:
    clip = jfk_samples[: 3 * rate]
    resampler = LiveResampler(rate)
    expected = np.concatenate([resampler.push(clip), resampler.flush()])
    assert expected.size == pytest.approx(clip.size * 16_000 / rate, abs=1)
    for chunk_size in (1, 37, 480, 9_999):
        part = clip[:2_000] if chunk_size == 1 else clip
        resampler = LiveResampler(rate)
        chunks = [resampler.push(part[start : start + chunk_size]) for start in range(0, part.size, chunk_size)]
        if chunk_size == 1:
            assert np.concatenate(chunks).tolist() == expected[: sum(map(len, chunks))].tolist()
        else:
            assert np.concatenate([*chunks, resampler.flush()]).tolist() == expected.tolist()


def test_pcm_needs_whole_samples() -> None:
    with pytest.raises(ApiError, match="3 bytes are not a whole number of 16-bit samples") as raised:
        decode_samples("audio/pcm", b"abc")
    assert raised.value.param == "audio"
