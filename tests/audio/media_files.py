"""Media made from real speech: any container and codec that PyAV can write, and wav headers written by hand."""

from __future__ import annotations

import io
import struct
import tempfile
import wave
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

RATE = 16_000
Int16Samples = npt.NDArray[np.int16]


def read_clip(path: Path, seconds: float | None = None) -> Int16Samples:
    """The first `seconds` of a 16 kHz mono 16-bit wav file, read without any code under test."""
    with wave.open(str(path)) as clip:
        assert (clip.getframerate(), clip.getnchannels(), clip.getsampwidth()) == (RATE, 1, 2)
        audio = np.frombuffer(clip.readframes(clip.getnframes()), "<i2")
    return audio if seconds is None else audio[: int(seconds * RATE)]


def encode(
    audio: Int16Samples,
    container: str,
    codec: str | None,
    *,
    rate: int = RATE,
    layout: str = "mono",
    video: str | None = None,
    options: dict[str, str] | None = None,
) -> bytes:
    """`audio` in this container; without a codec it has no audio, with `video` it has a video stream."""
    with tempfile.NamedTemporaryFile() as file:
        _write(Path(file.name), audio, container, codec, rate, layout, video, options or {})
        return file.read()


def _write(
    path: Path,
    audio: Int16Samples,
    container: str,
    codec: str | None,
    rate: int,
    layout: str,
    video: str | None,
    options: dict[str, str],
) -> None:
    with av.open(str(path), "w", format=container, options=options) as output:
        stream: Any = output.add_stream(codec, rate=rate, layout=layout) if codec else None
        pictures: Any = output.add_stream(video, rate=5) if video else None
        if codec == "wmav2":
            stream.bit_rate = 128_000  # it has no default
        if pictures is not None:
            _mux_pictures(output, pictures, seconds=len(audio) / RATE)
        if stream is not None:
            for frame in [*_resampled(audio, rate, layout), None]:
                output.mux(stream.encode(frame))


def _resampled(audio: Int16Samples, rate: int, layout: str) -> list[av.AudioFrame]:
    frame = av.AudioFrame.from_ndarray(audio[None].copy(), format="s16", layout="mono")
    frame.sample_rate = RATE
    frame.time_base = Fraction(1, RATE)
    frame.pts = 0
    resampler = av.AudioResampler(format="s16", layout=layout, rate=rate)
    return [*resampler.resample(frame), *resampler.resample(None)]


def _mux_pictures(output: Any, stream: Any, seconds: float) -> None:
    stream.width = stream.height = 64
    stream.pix_fmt = "yuv420p"
    for i in range(max(1, int(seconds * 5))):
        picture = av.VideoFrame.from_ndarray(np.full((96, 64), i % 255, np.uint8), format="yuv420p")
        picture.pts = i
        picture.time_base = Fraction(1, 5)
        output.mux(stream.encode(picture))
    output.mux(stream.encode(None))


def wav(
    samples: npt.NDArray[Any],
    *,
    rate: int = RATE,
    n_channels: int = 1,
    tag: int | None = None,
    data_bytes: int | None = None,
    riff_bytes: int | None = None,
) -> bytes:
    """A wav file written by hand: interleaved samples of any type, and sizes in its header that may be wrong."""
    body = samples.tobytes()
    width = samples.dtype.itemsize
    tag = tag if tag is not None else (3 if samples.dtype.kind == "f" else 1)
    form = struct.pack("<HHIIHH", tag, n_channels, rate, rate * width * n_channels, width * n_channels, 8 * width)
    size = len(body) if data_bytes is None else data_bytes
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", size) + body
    return b"RIFF" + struct.pack("<I", len(chunks) if riff_bytes is None else riff_bytes) + chunks


def wav24(audio: Int16Samples) -> bytes:
    """24-bit samples, which have no numpy type: 16 bits and a low byte of zero."""
    body = np.zeros((len(audio), 3), np.uint8)
    body[:, 1:] = audio.astype("<i2").view(np.uint8).reshape(-1, 2)
    header = bytearray(wav(np.zeros(0, np.int16)))
    struct.pack_into("<IIHH", header, 24, RATE, RATE * 3, 3, 24)
    struct.pack_into("<I", header, 40, body.size)
    struct.pack_into("<I", header, 4, 36 + body.size)
    return bytes(header) + body.tobytes()


def caf(audio: Int16Samples, labels: list[int]) -> bytes:
    """The audio in one channel per label; a label is a speaker position (1 left, 2 right, …)."""
    n_channels = len(labels)
    body = audio.astype(">i2").repeat(n_channels).tobytes()
    form = struct.pack(">d4s5I", RATE, b"lpcm", 0, 2 * n_channels, 1, n_channels, 16)
    places = struct.pack(">3I", 0, 0, n_channels) + b"".join(
        struct.pack(">2I3f", label, 0, 0, 0, 0) for label in labels
    )
    chunks = [(b"desc", form), (b"chan", places), (b"data", struct.pack(">I", 0) + body)]
    return b"caff\0\1\0\0" + b"".join(kind + struct.pack(">q", len(data)) + data for kind, data in chunks)


def likeness(audio: Int16Samples, other: npt.NDArray[Any], max_lag: int = 1_600) -> float:
    """Correlation of two signals at the best shift of up to a tenth of a second."""
    n = min(len(audio), len(other))
    size = 1 << (2 * n).bit_length()
    a, b = (np.fft.rfft(x[:n].astype(np.float64) - x[:n].mean(), size) for x in (audio, other))
    cross = np.fft.irfft(a * np.conj(b), size)
    best = max(cross[: max_lag + 1].max(), cross[-max_lag:].max())
    return float(best / (np.std(audio[:n].astype(np.float64)) * np.std(other[:n].astype(np.float64)) * n))


def with_cover(mp3: bytes, picture: bytes) -> bytes:
    """An mp3 file with a picture in an ID3 tag before it."""
    body = b"\0image/png\0\x03\0" + picture
    frame = b"APIC" + struct.pack(">IH", len(body), 0) + body
    size = len(frame)
    synchsafe = bytes((size >> shift) & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + synchsafe + frame + mp3


def png() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="image2pipe") as output:
        stream: Any = output.add_stream("png", rate=1)
        stream.width = stream.height = 32
        stream.pix_fmt = "rgb24"
        picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        output.mux([*stream.encode(picture), *stream.encode(None)])
    return file.getvalue()
