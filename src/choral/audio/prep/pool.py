"""The prep pool: audio in, recordings out, on CPU cores beside the engine.

Downloads run in threads; decoding runs in separate processes, so that a file that crashes, hangs or exhausts the
decoder fails alone. A future can be cancelled until it is done, even while its work is running. Errors are those of
`Recording.open`, with the same texts.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Literal

from choral.audio.prep.decode_main import DecodeFunction, default_decode, name_of
from choral.audio.prep.decode_protocol import DecodeReply, DecodeRequest
from choral.audio.prep.input_sources import OpenFile, PrepInput, open_path, share_file, store_bytes
from choral.audio.prep.lanes import Lane
from choral.audio.prep.memory_budget import MemoryBudget
from choral.audio.prep.process_pool import DecodeProcess, ProcessDied, ProcessPool
from choral.audio.prep.settings import PrepSettings
from choral.audio.recording import Recording
from choral.audio.source import AudioSource, fetch, url_suffix
from choral.audio.spool import close_on_error, temporary_file
from choral.errors import NotAudio
from choral.remote.abort_handle import AbortHandle
from choral.remote.ssrf_guard import SsrfGuard
from choral.remote.urls import redact_url, require_http, url_host, url_scheme
from choral.types import Loudness, LoudnessKind

FETCH_MEMORY_BYTES = 2**20  # of each download; the rest goes to a file
MAX_KILLS = 2  # a killed process is replaced once; a file whose process is killed twice is assumed to be the cause

Phase = Literal["waiting", "fetching", "fetched", "decoding"]


@dataclass(frozen=True)
class Prepared:
    """The caller closes the recording, which returns its memory to the pool."""

    recording: Recording
    fetch_s: float
    decode_s: float


@dataclass(frozen=True)
class Backlog:
    """How many tasks are in each phase, and the memory of recordings that are not closed yet."""

    waiting: int
    fetching: int
    fetched: int  # waiting for a decode process
    decoding: int
    memory_bytes: int


class PrepTask:
    """One input on its way through the pool; cancelling its future stops the work in any phase."""

    def __init__(self, audio: PrepInput, loudness: LoudnessKind | None, lane: Lane) -> None:
        self.audio, self.loudness, self.lane = audio, loudness, lane
        self.host = url_host(str(audio)) if url_scheme(audio) is not None else None
        # Set running only when it is done, because a running future cannot be cancelled.
        self.future: Future[Prepared] = Future()
        self.phase: Phase = "waiting"
        self.abort_handle = AbortHandle()
        self._lock = threading.Lock()
        self._process: DecodeProcess | None = None
        # Weak: a reference cycle of future and task would delay freeing the recording.
        stop = weakref.WeakMethod(self._stop)
        self.future.add_done_callback(lambda future: _call(stop()) if future.cancelled() else None)

    @contextlib.contextmanager
    def decoding_in(self, process: DecodeProcess) -> Iterator[None]:
        """While the process decodes this task's file, cancelling the task kills it."""
        with self._lock:
            self._process = process
            self.phase = "decoding"
        try:
            self.raise_if_cancelled()
            yield
        finally:
            with self._lock:
                self._process = None

    def raise_if_cancelled(self) -> None:
        if self.future.cancelled():
            raise CancelledError

    def finish(self, prepared: Prepared) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(prepared)
        else:
            prepared.recording.close()

    def fail(self, error: BaseException) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _stop(self) -> None:
        self.abort_handle.abort()
        with self._lock:
            if self._process is not None:
                self._process.kill()


def _call(method: Callable[[], None] | None) -> None:
    if method is not None:
        method()


class PrepPool:
    def __init__(self, settings: PrepSettings | None = None, *, decode: DecodeFunction = default_decode) -> None:
        """`decode` is what the processes run on each file: a module-level function."""
        self.settings = settings or PrepSettings()
        self._guard = SsrfGuard(self.settings.allowed_hosts)
        self._budget = MemoryBudget(self.settings.memory_bytes)
        # One more than each lane may use, so that neither waits for a process of the other.
        self._processes = ProcessPool(self.settings.n_processes + 1, name_of(decode))
        self._job_lane = Lane(self.settings, "job")
        self._interactive_lane = Lane(self.settings, "interactive", self.settings.interactive_timeout_s)
        self._lock = threading.Lock()
        self._tasks: set[PrepTask] = set()
        self._is_closed = False

    def submit(self, audio: PrepInput, *, loudness: Loudness = "off", is_interactive: bool = False) -> Future[Prepared]:
        """With `loudness` the level is measured too, so that transcribing with that option need not measure it.

        `is_interactive`: a client waits for the answer, so the time limits are shorter.
        """
        if url_scheme(audio) is not None:
            require_http(str(audio))
        lane = self._interactive_lane if is_interactive else self._job_lane
        task = PrepTask(audio, None if loudness == "off" else loudness, lane)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the prep pool is closed")
            self._tasks.add(task)
        lane.start(lambda: self._prepare(task), task.host)
        return task.future

    @property
    def backlog(self) -> Backlog:
        with self._lock:
            phases = Counter(task.phase for task in self._tasks if not task.future.done())
        return Backlog(
            **{phase: phases[phase] for phase in ("waiting", "fetching", "fetched", "decoding")},
            memory_bytes=self._budget.used_bytes,
        )

    def close(self) -> None:
        """Cancels all tasks that are not done; recordings that were handed out stay valid."""
        with self._lock:
            self._is_closed = True
            tasks = list(self._tasks)
        for task in tasks:
            task.future.cancel()
        self._job_lane.close()
        self._interactive_lane.close()
        self._processes.close()

    def __enter__(self) -> PrepPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _prepare(self, task: PrepTask) -> None:
        try:
            start_s = time.perf_counter()
            with self._open(task) as source:
                fetch_s = time.perf_counter() - start_s
                task.finish(self._decode(task, source, fetch_s))
        except BaseException as error:  # any error must reach the future, or its caller waits forever
            task.fail(error)
        finally:
            with self._lock:
                self._tasks.discard(task)

    def _open(self, task: PrepTask) -> AudioSource:
        try:
            task.raise_if_cancelled()
            return self._open_input(task)
        finally:
            if task.host is not None:
                task.lane.hosts.release(task.host)

    def _open_input(self, task: PrepTask) -> AudioSource:
        settings = self.settings
        if isinstance(task.audio, bytes):
            return store_bytes(task.audio, settings.max_bytes)
        if isinstance(task.audio, OpenFile):
            return share_file(task.audio.name, task.audio.file, settings.max_bytes)
        if url_scheme(task.audio) is None:
            return open_path(os.fspath(task.audio), settings.roots, settings.max_bytes)
        url = str(task.audio)
        task.phase = "fetching"
        file = fetch(
            url,
            max_bytes=settings.max_bytes,
            stall_timeout_s=settings.stall_timeout_s,
            total_timeout_s=task.lane.fetch_timeout_s,
            guard=self._guard,
            abort_handle=task.abort_handle,
            memory_bytes=FETCH_MEMORY_BYTES,
        )
        return AudioSource(redact_url(url), url_suffix(url), file, owns_file=True)

    def _decode(self, task: PrepTask, source: AudioSource, fetch_s: float) -> Prepared:
        output = temporary_file()
        with close_on_error(output):
            reply = self._run_process(task, source, output.fileno())
            reply.raise_error()
            recording = Recording(
                self._budget.load(output, reply.n_samples),
                n_samples=reply.n_samples,
                peak=reply.peak,
                name=source.name,
                warnings=reply.warnings,
            )
        if task.loudness is not None:
            recording.levels_db[task.loudness] = reply.level_db
        return Prepared(recording, fetch_s, reply.decode_s)

    def _run_process(self, task: PrepTask, source: AudioSource, output_fd: int) -> DecodeReply:
        request = DecodeRequest(source.name, source.suffix, self.settings.max_audio_s, task.loudness)
        timeout_s = task.lane.decode_timeout_s
        n_kills = 0
        while True:
            task.phase = "fetched"
            try:
                with task.lane.process_slots, self._processes.lease() as process, task.decoding_in(process):
                    return process.run(request, source.file.fileno(), output_fd, timeout_s)
            except TimeoutError as error:
                raise NotAudio(
                    f"{source.name} could not be decoded in {timeout_s:g} s: "
                    "convert it to wav or flac, or cut it into parts"
                ) from error
            except ProcessDied as death:
                task.raise_if_cancelled()
                n_kills += death.was_killed
                if not death.was_killed or n_kills == MAX_KILLS:
                    raise NotAudio(
                        f"{source.name} crashed the decoder ({death.reason}): it is damaged; convert it to wav or flac"
                    ) from death
                os.ftruncate(output_fd, 0)
                os.lseek(output_fd, 0, os.SEEK_SET)
