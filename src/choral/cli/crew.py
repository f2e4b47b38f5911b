"""Inputs at work, each on a thread of its own that transcribes and reports, all of them on one engine.

The threads touch no screen, no result and no standard stream but the one they read: whoever takes the reports does
all that is told and written, and so has everything in hand when Ctrl-C comes, which only the main thread hears.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from choral.cli.inputs import Input
from choral.types import Segment, TranscribeOptions, Transcript

if TYPE_CHECKING:
    from choral.api import Model

GRACE_S = 2.0  # for threads to end; one that waits for a pipe or a server may never


@dataclass(frozen=True)
class Heard:
    item: Input
    segment: Segment


@dataclass(frozen=True)
class Moved:
    item: Input
    done_s: float
    total_s: float


@dataclass(frozen=True)
class Finished:
    item: Input
    transcript: Transcript


@dataclass(frozen=True)
class Failed:
    item: Input
    error: BaseException


Report = Heard | Moved | Finished | Failed


class AnyCrew(Protocol):
    """Whoever works on inputs and reports: threads of this process, or workers anywhere."""

    size: int  # inputs at work at once

    def begin(self, item: Input) -> None: ...

    def next_report(self) -> Report: ...

    def reports_so_far(self) -> Iterator[Report]:
        """Those that are there already, without waiting."""
        ...

    def stop(self) -> None: ...


class Crew:
    """As many as there may be: their recordings together take no more memory than one alone may."""

    def __init__(self, model: Model, options: TranscribeOptions, size: int) -> None:
        self._model, self._options, self.size = model, options, size
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._wanted_no_more = threading.Event()
        self._threads: set[threading.Thread] = set()

    def begin(self, item: Input) -> None:
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        # Daemons: a program that was asked to stop must not wait for one that waits for a pipe.
        thread = threading.Thread(target=self._work, args=[item], name=f"choral-{item.file_name}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def next_report(self) -> Report:
        return self._reports.get()

    def reports_so_far(self) -> Iterator[Report]:
        while True:
            try:
                yield self._reports.get_nowait()
            except Empty:
                return

    def stop(self) -> None:
        """Ends what is under way, and the model with it: whoever waits for its engine has to hear of it."""
        self._wanted_no_more.set()
        self._model.close()
        deadline_s = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _work(self, item: Input) -> None:
        try:
            self._reports.put(Finished(item, self._transcribe(item)))
        except BaseException as error:  # a bug's too: it is raised where the reports are taken
            self._reports.put(Failed(item, error))

    def _transcribe(self, item: Input) -> Transcript:
        from choral.audio.recording import MAX_MEMORY_S, Recording

        with Recording.open(
            item.audio, max_memory_s=MAX_MEMORY_S / self.size, cancel_event=self._wanted_no_more
        ) as recording:
            return self._model.transcribe(
                recording,
                self._options,
                on_segment=lambda segment: self._reports.put(Heard(item, segment)),
                on_progress=lambda done_s, total_s: self._reports.put(Moved(item, done_s, total_s)),
            )
