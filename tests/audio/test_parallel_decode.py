"""A file decoded in sections on several threads equals the file decoded sequentially: samples, warnings, errors."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from choral.audio import parallel_decode, sections
from choral.audio.decode import Decoder
from choral.audio.mp3_frames import UnusualMp3, frame_starts, read_layout
from choral.audio.recording import Cancelled, Recording
from choral.audio.resample import Pieces
from choral.audio.source import open_source
from choral.errors import AudioTooLarge
from media_files import Int16Samples, encode, png, read_clip, wav, with_cover

SECTION_S = 2
N_THREADS = 3


@pytest.fixture(scope="module")
def speech(speech_clips: list[Path]) -> Int16Samples:
    """Half a minute, of an odd length."""
    return np.concatenate([read_clip(clip) for clip in speech_clips[:6]])[: 30 * 16_000 + 123]


@pytest.fixture
def decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Decodes a file with and without sections, compares, and says whether sections gave all samples."""
    monkeypatch.setattr(sections, "SECTION_S", SECTION_S)
    monkeypatch.setattr(parallel_decode, "MIN_LENGTH_S", 0)
    finished: list[int] = []
    in_sections = parallel_decode._in_sections

    def watched(*arguments: Any) -> Pieces:
        yield from in_sections(*arguments)
        finished.append(1)

    monkeypatch.setattr(parallel_decode, "_in_sections", watched)

    def run(data: bytes, suffix: str, n_threads: int = N_THREADS) -> bool:
        monkeypatch.setattr(parallel_decode, "n_threads_for", lambda length_s: n_threads)
        path = tmp_path / f"audio{suffix}"
        path.write_bytes(data)
        with open_source(path) as source:
            decoder = Decoder(source)
            expected = np.concatenate(list(decoder.pieces()))
        with Recording.open(path) as recording:
            samples = recording.samples(0, recording.n_samples)
            assert recording.warnings == decoder.warnings
        np.testing.assert_array_equal(samples * np.float32(32_768), expected)
        return bool(finished)

    return run


def lame(speech: Int16Samples, rate: int, layout: str, **options: str) -> bytes:
    return encode(speech, "mp3", "libmp3lame", rate=rate, layout=layout, options=options)


def vbr(speech: Int16Samples) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp3") as output:
        stream = output.add_stream("libmp3lame", rate=44_100, options={"flags": "+qscale", "global_quality": "472"})
        frame = av.AudioFrame.from_ndarray(speech[None].copy(), format="s16", layout="mono")
        frame.sample_rate = 16_000
        resampler = av.AudioResampler(format="s16p", layout="stereo", rate=44_100)
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            output.mux(stream.encode(part))  # type: ignore[arg-type]
    return file.getvalue()


@pytest.mark.speech
@pytest.mark.parametrize(
    ("rate", "layout"),
    [(8_000, "mono"), (11_025, "stereo"), (16_000, "mono"), (24_000, "stereo"), (44_100, "stereo"), (48_000, "mono")],
)
def test_mp3(speech: Int16Samples, decode: Callable[..., bool], rate: int, layout: str) -> None:
    assert decode(lame(speech, rate, layout), ".mp3")


@pytest.mark.speech
def test_one_thread(speech: Int16Samples, decode: Callable[..., bool]) -> None:
    whole = lame(speech, 44_100, "stereo")
    assert decode(whole, ".mp3", n_threads=1)
    decode(without_bytes(whole), ".mp3", n_threads=1)


@pytest.mark.speech
@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize(("container", "codec"), [("flac", "flac"), ("wav", "pcm_s16le"), ("wav", "pcm_s24le")])
def test_flac_and_wav(speech: Int16Samples, decode: Callable[..., bool], container: str, codec: str, rate: int) -> None:
    assert decode(encode(speech, container, codec, rate=rate, layout="stereo"), f".{container}")


@pytest.mark.speech
@pytest.mark.parametrize(
    "made",
    [
        vbr,
        lambda speech: lame(speech, 44_100, "stereo", write_xing="0"),
        lambda speech: lame(speech, 44_100, "stereo", write_id3v1="1"),
        lambda speech: with_cover(lame(speech, 44_100, "stereo"), png()),
        lambda speech: lame(speech, 44_100, "stereo")[:-200],  # ends within a frame
        lambda speech: lame(speech, 44_100, "stereo")[: 2 * len(speech) // 3],
        *(lambda speech, n=n: lame(speech[: len(speech) - n], 44_100, "stereo") for n in (77, 211, 512)),
    ],
    ids=["vbr", "no info frame", "id3v1", "cover", "partial frame", "truncated", "odd 1", "odd 2", "odd 3"],
)
def test_unusual_files_are_decoded_in_sections(
    speech: Int16Samples, decode: Callable[..., bool], made: Callable[[Int16Samples], bytes]
) -> None:
    assert decode(made(speech), ".mp3")


def without_bytes(data: bytes) -> bytes:
    return data[: len(data) // 2] + data[len(data) // 2 + 3_000 :]


def with_noise(data: bytes) -> bytes:
    noise = np.random.default_rng(0).bytes(3_000)
    return data[: len(data) // 2] + noise + data[len(data) // 2 + 3_000 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "missing bytes": without_bytes,
    "noise": with_noise,
    "joined": lambda data: data + data,
    "junk at the end": lambda data: data + b"x" * 1_000,
}


@pytest.mark.speech
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["mp3", "flac"])
def test_damaged_files_are_decoded_sequentially(
    speech: Int16Samples, decode: Callable[..., bool], kind: str, damage: str
) -> None:
    whole = encode(speech, kind, "flac" if kind == "flac" else "libmp3lame", rate=44_100, layout="stereo")
    decode(DAMAGE[damage](whole), f".{kind}")


@pytest.mark.speech
def test_other_formats_are_decoded_sequentially(speech: Int16Samples, decode: Callable[..., bool]) -> None:
    assert not decode(encode(speech, "mp4", "aac", rate=44_100), ".m4a")
    assert not decode(encode(speech, "ogg", "libopus", rate=48_000), ".opus")
    assert not decode(wav(speech.astype(np.float32) / 32_768), ".wav")


@pytest.mark.speech
def test_cancellation_and_limits_end_the_threads(
    speech: Int16Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "SECTION_S", SECTION_S)
    monkeypatch.setattr(parallel_decode, "MIN_LENGTH_S", 0)
    monkeypatch.setattr(parallel_decode, "n_threads_for", lambda length_s: N_THREADS)
    path = tmp_path / "audio.mp3"
    path.write_bytes(lame(speech, 44_100, "stereo"))
    with pytest.raises(AudioTooLarge):
        Recording.open(path, max_duration_s=10)
    cancel_event = threading.Event()
    with pytest.raises(Cancelled):
        Recording.open(path, on_progress=lambda *_: cancel_event.set(), cancel_event=cancel_event)
    for thread in threading.enumerate():
        if thread.name.startswith("choral-section"):
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.speech
def test_frames_of_an_mp3(speech: Int16Samples) -> None:
    data = with_cover(lame(speech, 44_100, "stereo"), png())
    layout = read_layout(io.BytesIO(data))
    starts = np.concatenate(list(frame_starts(io.BytesIO(data), layout)))
    assert len(starts) == layout.n_frames
    assert all(data[start] == 0xFF for start in starts)
    assert layout.n_heard(len(starts)) == round(len(speech) * 44_100 / 16_000)
    with pytest.raises(UnusualMp3):
        list(frame_starts(io.BytesIO(without_bytes(data)), layout))
    with pytest.raises(UnusualMp3):
        read_layout(io.BytesIO(wav(speech)))
