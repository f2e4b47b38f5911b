"""Real speech in every container, codec, rate, sample width and channel count decodes to the same speech."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.audio.plane import AudioPlane
from faster_whisper.audio import decode_audio

from choral.audio.media import channels_of, is_safe_layout, open_media
from choral.audio.recording import Recording
from choral.audio.resample import PIECE_SAMPLES, Resampler
from choral.audio.source import open_source
from media_files import Int16Samples, caf, encode, likeness, png, read_clip, wav, wav24, with_cover

pytestmark = pytest.mark.speech
SECONDS = 4.0


@pytest.fixture(scope="module")
def sentence(speech_clips: list[Path]) -> Int16Samples:
    return read_clip(max(speech_clips, key=lambda clip: clip.stat().st_size), SECONDS)


def decoded(audio: Any) -> tuple[Int16Samples, tuple[str, ...]]:
    with Recording.open(audio) as recording:
        samples = recording.samples(0, recording.n_samples)
        return np.round(samples * 32768).astype(np.int16), recording.warnings


FORMATS = [
    ("mp3", "libmp3lame", 44_100, "stereo"),
    ("mp3", "libmp3lame", 16_000, "mono"),
    ("adts", "aac", 44_100, "mono"),
    ("mp4", "aac", 48_000, "stereo"),
    ("ogg", "libopus", 48_000, "mono"),
    ("webm", "libopus", 48_000, "stereo"),
    ("matroska", "aac", 22_050, "mono"),
    ("flac", "flac", 48_000, "stereo"),
    ("ogg", "flac", 16_000, "mono"),
    ("mpegts", "mp2", 32_000, "mono"),
    ("asf", "wmav2", 44_100, "mono"),
    ("aiff", "pcm_s16be", 16_000, "mono"),
    ("caf", "pcm_s24le", 32_000, "5.1"),
    ("au", "pcm_mulaw", 8_000, "mono"),
    ("ac3", "ac3", 48_000, "5.1"),
    ("w64", "pcm_s32le", 96_000, "mono"),
    ("wav", "adpcm_ms", 22_050, "mono"),
]


@pytest.mark.parametrize(("container", "codec", "rate", "layout"), FORMATS)
def test_any_format(sentence: Int16Samples, container: str, codec: str, rate: int, layout: str) -> None:
    got, warnings = decoded(encode(sentence, container, codec, rate=rate, layout=layout))
    assert warnings == ()
    assert abs(len(got) - len(sentence)) < 0.15 * 16_000
    assert likeness(sentence, got) > (0.98 if rate >= 16_000 else 0.95)


@pytest.mark.parametrize("container", ["mp4", "matroska", "avi", "mpegts"])
def test_video_with_audio(sentence: Int16Samples, container: str) -> None:
    got, warnings = decoded(encode(sentence, container, "libmp3lame", rate=44_100, video="mpeg4"))
    assert warnings == ()
    assert likeness(sentence, got) > 0.98


@pytest.mark.parametrize(("container", "codec"), [("wav", "pcm_s16le"), ("flac", "flac"), ("matroska", "flac")])
def test_16_khz_mono_is_unchanged(sentence: Int16Samples, container: str, codec: str) -> None:
    got, _ = decoded(encode(sentence, container, codec))
    np.testing.assert_array_equal(got, sentence)


@pytest.mark.parametrize(
    ("container", "codec", "rate", "layout"),
    [("mp3", "libmp3lame", 44_100, "stereo"), ("mp4", "aac", 48_000, "stereo"), ("flac", "flac", 22_050, "mono")],
)
def test_samples_equal_faster_whisper(
    sentence: Int16Samples, container: str, codec: str, rate: int, layout: str
) -> None:
    media = encode(sentence, container, codec, rate=rate, layout=layout)
    with Recording.open(media) as recording:
        np.testing.assert_array_equal(recording.samples(0, recording.n_samples), decode_audio(io.BytesIO(media)))


@pytest.mark.parametrize("rate", [1_000, 8_000, 16_000, 44_100, 655_350])
@pytest.mark.parametrize("dtype", ["<i2", "<f4"])
def test_wav_samples_equal_faster_whisper_at_any_rate(sentence: Int16Samples, rate: int, dtype: str) -> None:
    """More than one piece, and resampling filters of every length."""
    values = np.resize(sentence, 3 * rate).astype(dtype) / (1 if dtype == "<i2" else 32768)
    media = wav(values.astype(dtype), rate=rate)
    with Recording.open(media) as recording:
        np.testing.assert_array_equal(recording.samples(0, recording.n_samples), decode_audio(io.BytesIO(media)))


def test_pieces_are_whole_whatever_the_packets(sentence: Int16Samples) -> None:
    """Frames of 2 to 65,535 samples give the same samples in pieces of the same size."""
    resampled = []
    for size in (2, 1_152, 65_535):
        resampler, pieces = Resampler(), []
        for start in range(0, len(sentence), size):
            frame = av.AudioFrame.from_ndarray(sentence[None, start : start + size].copy(), "s16", "mono")
            frame.sample_rate = 22_050
            pieces += resampler.push(frame)
        pieces += resampler.flush()
        assert {piece.size for piece in pieces[:-1]} == {PIECE_SAMPLES}
        assert resampler.n_values == len(sentence)
        resampled.append(np.concatenate(pieces))
    np.testing.assert_array_equal(resampled[0], resampled[1])
    np.testing.assert_array_equal(resampled[0], resampled[2])


def test_compressed_audio_in_a_pcm_wav(sentence: Int16Samples) -> None:
    """As S/PDIF recorders write it: ffmpeg finds it by looking at the samples."""
    ac3 = encode(sentence, "ac3", "ac3", rate=48_000, layout="stereo")
    got, _ = decoded(wav(np.frombuffer(ac3, "<i2"), rate=48_000, n_channels=2))
    assert likeness(sentence, got) > 0.98


def test_other_streams_are_discarded(sentence: Int16Samples) -> None:
    media = open_media(open_source(encode(sentence, "mp4", "aac", video="mpeg4")))
    others = [stream for stream in media.container.streams if stream is not media.stream]
    assert [stream.discard.name for stream in others] == ["all"]
    media.container.close()


@pytest.mark.parametrize("dtype", ["u1", "<i2", "<i4", "<f4", "<f8"])
@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 192_000])
def test_wav_of_any_width_and_rate(sentence: Int16Samples, dtype: str, rate: int) -> None:
    stretched = np.interp(np.arange(0, len(sentence), 16_000 / rate), np.arange(len(sentence)), sentence) / 32768
    kind = np.dtype(dtype)
    scaled = {"u": stretched * 127 + 128, "i": stretched * np.iinfo(f"i{kind.itemsize}").max}.get(kind.kind, stretched)
    got, _ = decoded(wav(np.asarray(scaled).astype(kind), rate=rate))
    assert abs(len(got) - len(sentence)) < 50
    assert likeness(sentence, got) > 0.9


def test_wav_of_24_bits(sentence: Int16Samples) -> None:
    np.testing.assert_array_equal(decoded(wav24(sentence))[0], sentence)


@pytest.mark.parametrize("n_channels", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32, 64])
@pytest.mark.parametrize("dtype", ["<i2", "<f4", "u1"])
def test_any_number_of_channels(sentence: Int16Samples, n_channels: int, dtype: str) -> None:
    scaled = {"<i2": sentence, "<f4": sentence / np.float32(32768), "u1": sentence / 256 + 128}[dtype].astype(dtype)
    got, _ = decoded(wav(np.repeat(scaled, n_channels), n_channels=n_channels))
    assert len(got) == len(sentence)
    assert likeness(sentence, got) > (0.95 if dtype == "u1" else 0.999)


@pytest.mark.parametrize("labels", [[1, 2], [2, 1], [4, 2, 1, 3], [3, 3], [2, 1, 0, 99, 33, 35, 34, 5, 6, 7]])
def test_channels_in_any_order(sentence: Int16Samples, labels: list[int]) -> None:
    for _ in range(20):  # a double free shows only sometimes
        got, _ = decoded(caf(sentence, labels))
    assert len(got) == len(sentence)
    assert likeness(sentence, got) > 0.999


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stereo", True),
        ("9 channels", True),
        ("ambisonic 1", True),
        ("4 channels (FL+FR+LFE+BC)", True),
        ("2 channels (FR+FL)", False),
        ("2 channels (FL+FL)", False),
        ("2 channels (FL+USR99)", False),
    ],
)
def test_safe_layouts(name: str, expected: bool) -> None:
    assert is_safe_layout(name) is expected


@pytest.mark.parametrize("n_channels", [8, 9, 16, 35])
def test_many_channels_in_planes(sentence: Int16Samples, n_channels: int) -> None:
    frame = av.AudioFrame("s16p", f"{n_channels} channels", 500)
    for channel in range(n_channels):
        AudioPlane(frame, channel).update(sentence[channel : channel + 500].tobytes())
    expected = [sentence[channel : channel + 500] for channel in range(n_channels)]
    np.testing.assert_array_equal(channels_of(frame), expected)


@pytest.mark.parametrize("size", [0, 0xFFFF_FFFF, 0x7FFF_FFFF])
def test_wav_of_unknown_length_from_a_pipe(sentence: Int16Samples, size: int) -> None:
    class Pipe(io.RawIOBase):
        def __init__(self, data: bytes) -> None:
            self.rest = io.BytesIO(data)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self.rest.readinto(memoryview(buffer)[:1_000])

    got, warnings = decoded(Pipe(wav(sentence, data_bytes=size, riff_bytes=size)))
    np.testing.assert_array_equal(got, sentence)
    assert warnings == ()


def test_webm_of_unknown_length(sentence: Int16Samples) -> None:
    media = encode(sentence, "webm", "libopus", rate=48_000, options={"live": "1"})
    got, warnings = decoded(media)
    assert warnings == ()
    assert likeness(sentence, got) > 0.98


@pytest.mark.parametrize(
    ("container", "codec", "rates"),
    [
        ("ogg", "flac", (16_000, 44_100)),
        ("ogg", "libopus", (48_000, 48_000)),
        ("mp3", "libmp3lame", (16_000, 44_100)),
        ("adts", "aac", (44_100, 16_000)),
    ],
)
def test_format_changes_midway(sentence: Int16Samples, container: str, codec: str, rates: tuple[int, int]) -> None:
    """Concatenated streams with another channel count and rate."""
    parts = [
        encode(sentence, container, codec, rate=rates[0], layout="mono"),
        encode(sentence, container, codec, rate=rates[1], layout="stereo"),
    ]
    got, _ = decoded(b"".join(parts))
    assert abs(len(got) - 2 * len(sentence)) < 0.2 * 16_000
    assert likeness(sentence, got[: len(sentence)]) > 0.98
    assert likeness(sentence, got[-len(sentence) :]) > 0.98


def test_cover_art_is_not_a_video(sentence: Int16Samples) -> None:
    got, warnings = decoded(with_cover(encode(sentence, "mp3", "libmp3lame", rate=44_100), png()))
    assert warnings == ()
    assert likeness(sentence, got) > 0.98


def test_raw_format_known_by_its_suffix(sentence: Int16Samples, tmp_path: Path) -> None:
    path = tmp_path / "prompt.g722"
    path.write_bytes(encode(sentence, "g722", "g722"))
    got, _ = decoded(path)
    assert abs(len(got) - len(sentence)) < 100
    assert likeness(sentence, got) > 0.98


def test_wrong_suffix_does_not_matter(sentence: Int16Samples, tmp_path: Path) -> None:
    path = tmp_path / "really.mp3"
    path.write_bytes(encode(sentence, "flac", "flac"))
    np.testing.assert_array_equal(decoded(path)[0], sentence)


@pytest.mark.parametrize("junk", [b"\0" * 5_000, b"RIFF" + b"x" * 3_000])
def test_mp3_after_junk(sentence: Int16Samples, junk: bytes) -> None:
    got, _ = decoded(junk + encode(sentence, "mp3", "libmp3lame", rate=44_100))
    assert likeness(sentence, got) > 0.95


@pytest.mark.parametrize(("container", "codec"), [("mp3", "libmp3lame"), ("adts", "aac"), ("mp4", "aac")])
def test_damage_in_the_middle_is_skipped(
    sentence: Int16Samples, container: str, codec: str, capfd: pytest.CaptureFixture[str]
) -> None:
    media = bytearray(encode(sentence, container, codec, rate=44_100))
    middle = len(media) // 2
    media[middle : middle + 1_500] = np.random.default_rng(1).bytes(1_500)
    got, warnings = decoded(bytes(media))
    third = len(sentence) // 3
    assert abs(len(got) - len(sentence)) < 0.6 * 16_000
    assert likeness(sentence[:third], got[:third]) > 0.95
    assert likeness(sentence[-third:], got[-third:], max_lag=third // 2) > 0.8
    assert [warning for warning in warnings if "skipped" in warning], warnings
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("container", "codec", "options"),
    [
        ("wav", "pcm_s16le", {}),
        ("flac", "flac", {}),
        ("mp4", "aac", {"movflags": "faststart"}),
        ("matroska", "libopus", {}),
        ("aiff", "pcm_s16be", {}),
    ],
)
def test_truncated_file_is_decoded_with_a_warning(
    sentence: Int16Samples, container: str, codec: str, options: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    media = encode(sentence, container, codec, rate=48_000, options=options)
    got, warnings = decoded(media[: len(media) * 6 // 10])
    assert 0.4 * len(sentence) < len(got) < 0.75 * len(sentence)
    assert likeness(sentence, got) > 0.98
    early = [warning for warning in warnings if "ends early" in warning]
    assert len(early) == 1
    assert f"the first {len(got) / 16_000:.1f} s of" in early[0]
    assert float(early[0].split(" s of ")[1].rstrip(" s")) == pytest.approx(SECONDS, abs=0.15)
    assert capfd.readouterr() == ("", "")


def test_truncated_mp3_is_decoded(sentence: Int16Samples) -> None:
    media = encode(sentence, "mp3", "libmp3lame", rate=44_100)
    got, _ = decoded(media[: len(media) // 2])
    assert likeness(sentence, got) > 0.98
    assert len(got) == pytest.approx(len(sentence) / 2, rel=0.1)


def test_extra_chunk_in_wav_is_not_a_truncation(sentence: Int16Samples) -> None:
    """A wav file with another chunk after its audio."""
    media = wav(sentence) + b"LIST" + struct.pack("<I", 4) + b"INFO"
    got, warnings = decoded(media)
    np.testing.assert_array_equal(got, sentence)
    assert warnings == ()
