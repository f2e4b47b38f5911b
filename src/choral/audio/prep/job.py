"""One piece of audio on its way through the pool, with what it takes to stop it wherever it is."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import IO, Literal

from choral.audio.prep.process import DecodeProcess
from choral.audio.recording import Recording
from choral.remote.lifeline import Lifeline
from choral.types import LoudnessKind


@dataclass(frozen=True)
class OpenFile:
    """A file that somebody holds open, and closes when the future is done: an upload."""

    name: str  # for messages; its suffix may tell the format
    file: IO[bytes]


AudioPlace = str | os.PathLike[str] | bytes | OpenFile  # an address or a path, or the audio itself
Phase = Literal["waiting", "fetching", "fetched", "decoding"]


@dataclass(frozen=True)
class Prepared:
    """The caller closes the recording, which gives its memory back."""

    recording: Recording
    fetch_s: float
    decode_s: float


class Job:
    def __init__(self, audio: AudioPlace, loudness: LoudnessKind | None) -> None:
        self.audio, self.loudness = audio, loudness
        # Not set running before it is done, so that it can be cancelled until then.
        self.future: Future[Prepared] = Future()
        self.phase: Phase = "waiting"
        self.lifeline = Lifeline()
        self._lock = threading.Lock()
        self._process: DecodeProcess | None = None
        stop = weakref.WeakMethod(self._stop)  # a future that held its job would be freed late, and its sound with it
        self.future.add_done_callback(lambda future: _call(stop()) if future.cancelled() else None)

    @contextlib.contextmanager
    def working(self, process: DecodeProcess) -> Iterator[None]:
        """While the process has the job's file, cancelling the job kills it."""
        with self._lock:
            self._process = process
            self.phase = "decoding"
        try:
            self.require_wanted()
            yield
        finally:
            with self._lock:
                self._process = None

    def require_wanted(self) -> None:
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
        self.lifeline.cut()
        with self._lock:
            if self._process is not None:
                self._process.kill()


def _call(method: Callable[[], None] | None) -> None:
    if method is not None:
        method()
