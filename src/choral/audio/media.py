"""A media file opened by ffmpeg so that it can reach nothing but itself.

Playlists, devices and network formats are not in the list of formats, no protocol is allowed, and every other
file that a format asks for is empty: a file cannot make Choral read another one.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

import av
import av.container
from av.audio.stream import AudioStream

from choral.audio.layouts import settle_layout
from choral.audio.reader import Reader
from choral.audio.source import Source
from choral.errors import AudioError, NoAudioTrack, NotAudio

# All that PyAV raises on bad media: FFmpegError for ffmpeg's own codes, the others from its Python side.
MEDIA_ERRORS = (av.error.FFmpegError, OSError, ValueError, EOFError, OverflowError, RuntimeError)

# These name other files, devices or addresses, or take any text for a picture.
_REFUSED_FORMATS = frozenset(
    {"concat", "dash", "hls", "imf", "vobsub", "webm_dash_manifest", "image2", "image2pipe"}
    | {"rtp", "rtsp", "sap", "sdp"}
    | {"alsa", "fbdev", "kmsgrab", "lavfi", "oss", "v4l2", "video4linux2", "x11grab"}
    | {"data", "ffmetadata", "rawvideo", "tty"}
)
# Lengths in these headers are counted by the writer; elsewhere they are guessed from the bit rate.
_FORMATS_WITH_TRUE_LENGTH = frozenset({"aiff", "asf", "au", "caf", "flac", "matroska", "mov", "w64"})
# Before PyAV 19, tags are read with the rest, and one that is not UTF-8 would be an error; since then nobody asks.
_BAD_TAGS_IGNORED: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
_RIFF_UNKNOWN_BYTES = 0x7FFF_0000  # pipes write 0x7FFFFFFF or 0xFFFFFFFF as the size, or something near


@dataclass(frozen=True)
class Media:
    container: av.container.InputContainer
    stream: AudioStream
    reader: Reader
    is_float: bool  # stored as floating-point numbers, which may be none
    total_s: float | None  # for progress: a good guess
    promised_s: float | None  # what the header promises, where headers can be trusted


def open_media(source: Source) -> Media:
    """The container and its best audio stream; the caller closes the container."""
    source.file.seek(0)
    missing_bytes = _riff_missing_bytes(source.file)
    reader = Reader(source)
    container = _opened(source, reader)
    try:
        stream = _audio_stream(container, source.name)
        settle_layout(stream)
        is_float = stream.codec_context.name.startswith("pcm_f")
        promised_s = _promised_s(container, stream, missing_bytes)
        return Media(container, stream, reader, is_float, _total_s(container), promised_s)
    except MEDIA_ERRORS as error:
        container.close()
        raise _not_audio(source) from error
    except AudioError:
        container.close()
        raise


@cache
def allowed_formats() -> str:
    names = (name for listed in av.formats_available for name in listed.split(","))
    return ",".join(sorted(name for name in set(names) if name not in _REFUSED_FORMATS and not name.endswith("_pipe")))


def _opened(source: Source, reader: Reader) -> av.container.InputContainer:
    options = {"format_whitelist": allowed_formats(), "protocol_whitelist": "none"}
    try:
        container: av.container.InputContainer = av.open(
            reader,
            "r",
            options=options,
            container_options=options,
            io_open=_empty_file,
            **_BAD_TAGS_IGNORED,
        )
        return container
    except MEDIA_ERRORS as error:
        reader.raise_pending()
        raise _not_audio(source) from error


def _not_audio(source: Source) -> NotAudio:
    return NotAudio(
        f"{source.name} is not audio that can be read, or it is damaged or cut short; "
        "check that it plays, or convert it to wav or flac"
    )


def _empty_file(url: str, flags: int, options: dict[str, str]) -> io.BytesIO:
    return io.BytesIO()


def _audio_stream(container: av.container.InputContainer, name: str) -> AudioStream:
    decodable = [stream for stream in container.streams.audio if stream.codec_context is not None]
    if not container.streams.audio:
        raise _without_sound(container, name)
    if not decodable:
        raise NotAudio(f"no decoder knows how the sound in {name} is stored; convert it to wav or flac")
    best = container.streams.best("audio")
    return next((stream for stream in decodable if stream is best), decodable[0])


def _without_sound(container: av.container.InputContainer, name: str) -> AudioError:
    if container.streams.video:
        return NoAudioTrack(f"{name} is a video without sound: there is nothing to transcribe")
    return NotAudio(f"{name} holds no sound: check that it is the right file")


def _total_s(container: av.container.InputContainer) -> float | None:
    return container.duration / av.time_base if container.duration and container.duration > 0 else None


def _promised_s(container: av.container.InputContainer, stream: AudioStream, missing_bytes: int) -> float | None:
    names = set(container.format.name.split(","))
    stream_s = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else None
    if "wav" in names and stream_s is not None and missing_bytes > 0 and stream.bit_rate:
        return stream_s + missing_bytes * 8 / stream.bit_rate
    if not names & _FORMATS_WITH_TRUE_LENGTH:
        return None
    # The length of the whole file may be that of its pictures.
    return _total_s(container) if stream_s is None and not container.streams.video else stream_s


def _riff_missing_bytes(file: IO[bytes]) -> int:
    """ffmpeg corrects the length of a wav file that was cut; its first bytes still tell."""
    head = file.read(8)
    riff_bytes = int.from_bytes(head[4:], "little")
    missing_bytes = 8 + riff_bytes - file.seek(0, io.SEEK_END)
    file.seek(0)
    return missing_bytes if head[:4] == b"RIFF" and riff_bytes < _RIFF_UNKNOWN_BYTES else 0
