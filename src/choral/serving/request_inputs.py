"""The audio of a request on its way to another process: a description, and an open file where there is no path or URL.

Paths and URLs are opened by the process that decodes them; bytes and samples are passed in shared memory, open files as
descriptors. Other streams cannot be shared: `share_input` returns None, and the request runs in the calling process.
"""

from __future__ import annotations

import io
import mmap
import os
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, Any, Literal

import numpy as np

from choral.audio.recording import MAX_DURATION_S, AudioInput, Recording
from choral.audio.samples import SamplesInMemory
from choral.audio.source import (
    MAX_FETCH_BYTES,
    MAX_STREAM_BYTES,
    STALL_TIMEOUT_S,
    TOTAL_TIMEOUT_S,
    AudioSource,
    fetch,
    open_file,
    source_from_file,
    url_suffix,
)
from choral.audio.spool import require_size
from choral.errors import AudioEmpty, StorageError
from choral.options import Channels, LoudnessKind
from choral.remote.abort_handle import AbortHandle
from choral.remote.ssrf_guard import SsrfGuard
from choral.remote.urls import redact_url, require_http, url_scheme
from choral.serving.input_sources import OpenFile, open_path, share_file
from choral.serving.settings import ServingSettings

FETCH_MEMORY_BYTES = 2**20  # of each download; the rest goes to a file
PIECE_SAMPLES = 2**20
_PROCESS_FILES = ("/dev/fd/", "/dev/std", "/proc/")  # another process would find its own files there

RequestAudio = AudioInput | Recording | OpenFile
InputKind = Literal["path", "url", "file", "samples"]


@dataclass(frozen=True, kw_only=True)
class InputLimits:
    """What may be read, and how long it may take. The defaults are those of `Recording.open`."""

    roots: tuple[str, ...] | None = None  # None: any path
    allowed_hosts: tuple[str, ...] | None = None  # None: any host, without a guard
    max_bytes: int = MAX_STREAM_BYTES
    max_fetch_bytes: int = MAX_FETCH_BYTES
    max_audio_s: float = MAX_DURATION_S
    stall_timeout_s: float = STALL_TIMEOUT_S
    fetch_timeout_s: float = TOTAL_TIMEOUT_S
    decode_timeout_s: float = float("inf")
    interactive_timeout_s: float = float("inf")

    @classmethod
    def of(cls, settings: ServingSettings) -> InputLimits:
        return cls(
            roots=settings.roots,
            allowed_hosts=settings.allowed_hosts,
            max_bytes=settings.max_bytes,
            max_fetch_bytes=settings.max_bytes,
            max_audio_s=settings.max_audio_s,
            stall_timeout_s=settings.stall_timeout_s,
            fetch_timeout_s=settings.fetch_timeout_s,
            decode_timeout_s=settings.decode_timeout_s,
            interactive_timeout_s=settings.interactive_timeout_s,
        )

    def max_fetch_s(self, client_waits: bool) -> float:
        return min(self.fetch_timeout_s, self.interactive_timeout_s) if client_waits else self.fetch_timeout_s

    def max_decode_s(self, client_waits: bool) -> float:
        return min(self.decode_timeout_s, self.interactive_timeout_s) if client_waits else self.decode_timeout_s


@dataclass(frozen=True, kw_only=True)
class InputRef:
    """Describes the audio to the process that opens it."""

    kind: InputKind
    name: str  # the path or URL itself; otherwise for messages
    suffix: str = ""  # of an open file: may identify the format
    folder: str = ""  # that a path is relative to
    channel_peaks: tuple[float, ...] = ()  # of samples, as are the fields below
    is_split: bool = False  # interleaved, a channel for each peak
    warnings: tuple[str, ...] = ()
    levels_db: dict[LoudnessKind, float] = field(default_factory=dict)

    @property
    def shown_name(self) -> str:
        return redact_url(self.name) if self.kind == "url" else self.name


@dataclass
class SharedInput:
    ref: InputRef
    fd: int | None = None  # owned by this object
    can_rerun: bool = True  # False: a pipe can be read once

    def close(self) -> None:
        """A second call has no effect."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)


def share_input(audio: RequestAudio, limits: InputLimits, channels: Channels = "mix") -> SharedInput | None:
    """None for a stream that cannot be handed to another process."""
    if isinstance(audio, np.ndarray):
        with Recording.open(audio, channels=channels) as recording:
            return _share_samples(recording)
    if isinstance(audio, Recording):
        return _share_samples(audio)
    if isinstance(audio, OpenFile):
        return _share_open_file(audio, limits)
    if isinstance(audio, bytes | bytearray):
        return _share_bytes("the given bytes", audio, limits)
    if isinstance(audio, str | os.PathLike):
        return _share_name(os.fspath(audio))
    return _share_stream(audio)


def _share_name(name: str) -> SharedInput | None:
    if url_scheme(name):
        require_http(name)
        return SharedInput(InputRef(kind="url", name=name))
    if name.startswith(_PROCESS_FILES):
        return None
    return SharedInput(InputRef(kind="path", name=name, folder="" if os.path.isabs(name) else os.getcwd()))


def _share_stream(file: Any) -> SharedInput | None:
    """Only files whose descriptor gives the same bytes; a pipe must not have a buffer that has read ahead."""
    is_file = type(file) is io.FileIO
    is_buffered = type(file) is io.BufferedReader and type(file.raw) is io.FileIO and file.seekable()
    if not (is_file or is_buffered) or file.closed:
        return None
    name = file.name if isinstance(file.name, str) else "the given stream"
    ref = InputRef(kind="file", name=name, suffix=PurePosixPath(name).suffix)
    return SharedInput(ref, _dup(file), can_rerun=file.seekable())


def _share_open_file(audio: OpenFile, limits: InputLimits) -> SharedInput:
    if isinstance(audio.file, io.BytesIO):
        return _share_bytes(audio.name, audio.file.getvalue(), limits)
    with share_file(audio.name, audio.file, limits.max_bytes) as source:
        return SharedInput(InputRef(kind="file", name=audio.name, suffix=source.suffix), _dup(source.file))


def _share_bytes(name: str, data: bytes | bytearray, limits: InputLimits) -> SharedInput:
    require_size(name, len(data), limits.max_bytes)
    if not data:
        raise AudioEmpty(f"{name} is empty: it has no bytes")
    return SharedInput(InputRef(kind="file", name=name, suffix=os.path.splitext(name)[1]), _in_memory([data]))


def _share_samples(recording: Recording) -> SharedInput:
    is_split = recording.read(0, 1).ndim == 2
    ref = InputRef(
        kind="samples",
        name=recording.name,
        channel_peaks=recording.summary.channel_peaks,
        is_split=is_split,
        warnings=recording.warnings,
        levels_db=dict(recording.levels_db),
    )
    starts = range(0, recording.n_samples, PIECE_SAMPLES)
    pieces = (np.ascontiguousarray(recording.read(start, start + PIECE_SAMPLES)) for start in starts)
    return SharedInput(ref, _in_memory(piece.data.cast("B") for piece in pieces))


def _in_memory(pieces: Any) -> int:
    fd = os.memfd_create("choral-input")
    try:
        with open(fd, "wb", closefd=False, buffering=0) as file:
            for piece in pieces:
                _write_all(file, memoryview(piece))
    except OSError as error:
        os.close(fd)
        raise StorageError(f"no memory for the audio ({error.strerror}): free some memory") from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write_all(file: Any, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def _dup(file: IO[bytes]) -> int:
    return os.dup(file.fileno())


def open_input(
    ref: InputRef, fd: int | None, limits: InputLimits, *, client_waits: bool, abort_handle: AbortHandle
) -> AudioSource | Recording:
    """In the process that decodes it; takes over `fd`. Errors are those of `Recording.open`."""
    if ref.kind == "url":
        return fetch_input(ref.name, limits, client_waits=client_waits, abort_handle=abort_handle)
    if ref.kind == "path":
        if limits.roots is not None:
            return open_path(ref.name, limits.roots, limits.max_bytes)
        file = open_file(ref.name, lambda name, flags: os.open(os.path.join(ref.folder, name), flags))
        return source_from_file(file, ref.name, suffix=os.path.splitext(ref.name)[1], owns_file=True)
    assert fd is not None
    if ref.kind == "file":
        return source_from_file(os.fdopen(fd, "rb"), ref.name, suffix=ref.suffix, owns_file=True)
    return _open_samples(ref, fd)


def fetch_input(url: str, limits: InputLimits, *, client_waits: bool, abort_handle: AbortHandle) -> AudioSource:
    file = fetch(
        url,
        max_bytes=limits.max_fetch_bytes,
        stall_timeout_s=limits.stall_timeout_s,
        total_timeout_s=limits.max_fetch_s(client_waits),
        guard=None if limits.allowed_hosts is None else SsrfGuard(limits.allowed_hosts),
        abort_handle=None if limits.allowed_hosts is None else abort_handle,  # a proxy's connection cannot be aborted
        memory_bytes=FETCH_MEMORY_BYTES,
    )
    return source_from_file(file, redact_url(url), suffix=url_suffix(url), owns_file=True)


def _open_samples(ref: InputRef, fd: int) -> Recording:
    n_bytes = os.fstat(fd).st_size
    try:
        data = mmap.mmap(fd, n_bytes, prot=mmap.PROT_READ) if n_bytes else b""
        samples = np.frombuffer(data, np.float32)
    finally:
        os.close(fd)
    if ref.is_split:
        samples = samples.reshape(-1, len(ref.channel_peaks))
    recording = Recording(
        SamplesInMemory(samples),
        n_samples=len(samples),
        channel_peaks=ref.channel_peaks,
        name=ref.name,
        warnings=ref.warnings,
    )
    recording.levels_db.update(ref.levels_db)
    return recording
