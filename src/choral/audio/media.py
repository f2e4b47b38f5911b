"""PyAV made safe for untrusted files: it reads nothing but the given source, and its known crashes are avoided.

- Isolation: playlists, devices and network formats are not on the format whitelist, no protocol is allowed, and every
  other file that a format asks for is empty. So a file cannot make Choral read another one.
- Errors: exceptions inside ffmpeg's callbacks would surface in some later, unrelated call. `SourceReader` stores them
  and reports the end of the file; `raise_pending` raises them.
- Channel layouts: a layout in a custom order (right before left, say) points to memory that PyAV frees twice, which
  kills the process. `reset_layout` replaces it before decoding; `require_safe_layouts` rejects frames that have one.
"""

from __future__ import annotations

import ctypes
import io
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import IO, Any

import av
import av.container
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.plane import AudioPlane
from av.audio.stream import AudioStream

from choral.audio.source import AudioSource, unreadable
from choral.errors import AudioError, NoAudioTrack, NotAudio

# All that PyAV raises on bad media: FFmpegError for ffmpeg's own codes, the others from its Python side.
MEDIA_ERRORS = (av.error.FFmpegError, OSError, ValueError, EOFError, OverflowError, RuntimeError)
MAX_BUSY_S = 60.0  # of work by ffmpeg without any decoded audio

# These refer to other files, devices or network hosts, or accept any text as a picture.
_REFUSED_FORMATS = frozenset(
    {"concat", "dash", "hls", "imf", "vobsub", "webm_dash_manifest", "image2", "image2pipe"}
    | {"rtp", "rtsp", "sap", "sdp"}
    | {"alsa", "fbdev", "kmsgrab", "lavfi", "oss", "v4l2", "video4linux2", "x11grab"}
    | {"data", "ffmetadata", "rawvideo", "tty"}
)
# The writers of these headers count the length; other formats estimate it from the bit rate.
_FORMATS_WITH_EXACT_LENGTH = frozenset({"aiff", "asf", "au", "caf", "flac", "matroska", "mov", "w64"})
# PyAV before 19 decodes all tags on opening, and fails on one that is not UTF-8.
_IGNORE_BAD_TAGS: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
_RIFF_UNKNOWN_BYTES = 0x7FFF_0000  # pipes write 0x7FFFFFFF or 0xFFFFFFFF as the size, or something near
_SEEK_FAILED = -1
_WAV_HEAD_BYTES = 22
_PCM_TAGS = (0x0001, 0x0003, 0xFFFE)  # integers, floats, and either of them in an extended header
# Packets of 32 KiB instead of 4, and only the first is searched for AC-3 or DTS frames: ffmpeg would search 5 s.
PCM_WAV_OPTIONS = {"max_size": "32768", "max_probe_packets": "1"}

# ffmpeg's native channel order: layouts that keep it are a bit mask and own no memory.
_NATIVE_ORDER = (
    *("FL", "FR", "FC", "LFE", "BL", "BR", "FLC", "FRC", "BC", "SL", "SR", "TC"),
    *("TFL", "TFC", "TFR", "TBL", "TBC", "TBR", "DL", "DR", "WL", "WR", "SDL", "SDR", "LFE2"),
    *("TSL", "TSR", "BFC", "BFL", "BFR", "SSL", "SSR", "TTL", "TTR", "BIL", "BIR"),
)
_SAMPLE_TYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "flt": "f4", "dbl": "f8"}


class SourceReader:
    """The file object that ffmpeg reads. It also ends a file that keeps ffmpeg busy without giving audio."""

    def __init__(self, source: AudioSource) -> None:
        self.name = f"audio{source.suffix}"  # ffmpeg recognises some formats by suffix alone
        self._source = source
        self._file = source.file
        self._pending: BaseException | None = None
        self.found_audio = False  # since the last read; the decoder sets it
        self._busy_s = 0.0  # ffmpeg's working time since then
        self._returned_s = time.monotonic()

    def read(self, size: int) -> bytes:
        self._count_busy_time()
        if self._pending is not None:
            return b""
        try:
            return (self._file.read(size) or b"")[:size]
        except (OSError, ValueError) as error:
            self._pending = unreadable(self._source.name, error)
            return b""
        except KeyboardInterrupt as interrupt:
            self._pending = interrupt
            return b""
        finally:
            self._returned_s = time.monotonic()

    def seek(self, offset: int, whence: int = 0) -> int:
        if self._pending is not None or whence not in (0, 1, 2):
            return _SEEK_FAILED
        try:
            return self._file.seek(offset, whence)
        except (OSError, ValueError, OverflowError):
            return _SEEK_FAILED

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def raise_pending(self) -> None:
        if self._pending is not None:
            raise self._pending

    def _count_busy_time(self) -> None:
        self._busy_s = 0.0 if self.found_audio else self._busy_s + time.monotonic() - self._returned_s
        self.found_audio = False
        if self._busy_s > MAX_BUSY_S and self._pending is None:
            self._pending = NotAudio(
                f"{self._source.name}: no audio was found in {MAX_BUSY_S:.0f} s of decoding, so it is damaged; "
                "convert it to wav or flac and try again"
            )


@dataclass(frozen=True)
class Media:
    container: av.container.InputContainer
    stream: AudioStream
    reader: SourceReader
    is_float: bool  # stored as floating point, which may be NaN or infinite
    total_s: float | None  # an estimate, for progress
    header_s: float | None  # the length in the header, for formats whose headers are exact


def open_media(source: AudioSource) -> Media:
    """The container and its best audio stream; the caller closes the container."""
    source.file.seek(0)
    head = source.file.read(_WAV_HEAD_BYTES)
    missing_bytes = _riff_missing_bytes(source.file, head)
    reader = SourceReader(source)
    container = _open_container(source, reader, PCM_WAV_OPTIONS if _is_pcm_wav(head) else {})
    try:
        stream = _audio_stream(container, source.name)
        reset_layout(stream)
        stream.codec_context.thread_count = 1
        _discard_others(container, stream)
        is_float = stream.codec_context.name.startswith("pcm_f")
        header_s = _header_s(container, stream, missing_bytes)
        return Media(container, stream, reader, is_float, _total_s(container), header_s)
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


def _open_container(
    source: AudioSource, reader: SourceReader, format_options: dict[str, str]
) -> av.container.InputContainer:
    options = {"format_whitelist": allowed_formats(), "protocol_whitelist": "none", **format_options}
    try:
        container: av.container.InputContainer = av.open(
            reader, "r", options=options, container_options=options, io_open=_empty_file, **_IGNORE_BAD_TAGS
        )
        return container
    except MEDIA_ERRORS as error:
        reader.raise_pending()
        raise _not_audio(source) from error


def _not_audio(source: AudioSource) -> NotAudio:
    return NotAudio(
        f"{source.name} is not audio that can be read, or it is damaged or cut short; "
        "check that it plays, or convert it to wav or flac"
    )


def _empty_file(url: str, flags: int, options: dict[str, str]) -> io.BytesIO:
    return io.BytesIO()


def _audio_stream(container: av.container.InputContainer, name: str) -> AudioStream:
    streams = container.streams
    if not streams.audio and streams.video:
        raise NoAudioTrack(f"{name} is a video without audio: there is nothing to transcribe")
    if not streams.audio:
        raise NotAudio(f"{name} has no audio in it: check that it is the right file")
    decodable = [stream for stream in streams.audio if stream.codec_context is not None]
    if not decodable:
        raise NotAudio(f"the audio codec of {name} is not supported; convert it to wav or flac")
    best = streams.best("audio")
    return next((stream for stream in decodable if stream is best), decodable[0])


def _total_s(container: av.container.InputContainer) -> float | None:
    return container.duration / av.time_base if container.duration and container.duration > 0 else None


def _header_s(container: av.container.InputContainer, stream: AudioStream, missing_bytes: int) -> float | None:
    names = set(container.format.name.split(","))
    stream_s = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else None
    if "wav" in names and stream_s is not None and missing_bytes > 0 and stream.bit_rate:
        return stream_s + missing_bytes * 8 / stream.bit_rate
    if not names & _FORMATS_WITH_EXACT_LENGTH:
        return None
    # The length of the whole file may be that of its video.
    return _total_s(container) if stream_s is None and not container.streams.video else stream_s


def _discard_others(container: av.container.InputContainer, stream: AudioStream) -> None:
    """Lets the demuxer skip the video instead of reading it."""
    for other in container.streams:
        if other is not stream and hasattr(other, "discard"):  # older versions of PyAV have none
            other.discard = type(other.discard).all


def _is_pcm_wav(head: bytes) -> bool:
    return head[8:16] == b"WAVEfmt " and int.from_bytes(head[20:22], "little") in _PCM_TAGS


def _riff_missing_bytes(file: IO[bytes], head: bytes) -> int:
    """How many bytes a truncated wav file lacks: ffmpeg corrects the length, so read it from the RIFF header."""
    riff_bytes = int.from_bytes(head[4:8], "little")
    missing_bytes = 8 + riff_bytes - file.seek(0, io.SEEK_END)
    file.seek(0)
    return missing_bytes if head[:4] == b"RIFF" and riff_bytes < _RIFF_UNKNOWN_BYTES else 0


def reset_layout(stream: AudioStream) -> None:
    """Gives the decoder a layout that is only a name or a count. Call it before decoding."""
    context = stream.codec_context
    layout = context.layout  # shares its memory with the decoder until the decoder gets another one
    if layout.nb_channels:
        context.layout = f"{layout.nb_channels} channels" if "channels (" in layout.name else layout.name


def require_safe_layouts(frames: list[AudioFrame]) -> None:
    for frame in frames:
        if not is_safe_layout(frame.layout.name):
            _leak(frames)
            raise NotAudio(f"its channel layout is not supported ({frame.layout.name}); convert it to mono or stereo")


@lru_cache(maxsize=64)
def is_safe_layout(layout_name: str) -> bool:
    """Whether the channels that the name may list, "3 channels (FL+FR+BC)", are in ffmpeg's native order."""
    _, has_list, channels = layout_name.partition("channels (")
    ranks = [_NATIVE_ORDER.index(name) if name in _NATIVE_ORDER else -1 for name in channels.rstrip(")").split("+")]
    return not has_list or (-1 not in ranks and ranks == sorted(set(ranks)))


def _leak(frames: list[AudioFrame]) -> None:
    """Never frees these frames: a small leak, where freeing would kill the process."""
    for frame in frames:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(frame))


def channels_of(frame: AudioFrame) -> npt.NDArray[Any]:
    """The samples as [channels, samples], plane by plane: PyAV's own list of planes overruns from 8 channels on."""
    kind, n_channels = frame.format.name.removesuffix("p"), frame.layout.nb_channels
    if kind not in _SAMPLE_TYPES:
        raise NotAudio(f"{n_channels} channels of {kind} samples cannot be mixed down; convert it to mono or stereo")
    if frame.format.is_planar:
        return np.stack([_plane(frame, i, kind, frame.samples) for i in range(n_channels)])
    return _plane(frame, 0, kind, frame.samples * n_channels).reshape(-1, n_channels).T


def _plane(frame: AudioFrame, index: int, kind: str, count: int) -> npt.NDArray[Any]:
    plane: Any = AudioPlane(frame, index)
    return np.frombuffer(plane, _SAMPLE_TYPES[kind], count=count)
