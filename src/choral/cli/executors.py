"""Two ways to transcribe the inputs of a run: threads of this process on one engine, or jobs in the queue.

Both report events to the main thread, which alone draws, prints and writes results: Ctrl-C is delivered only there.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from choral.cli.inputs import Input
from choral.errors import ChoralError, RedisUnavailable
from choral.types import Segment, TranscribeOptions, Transcript

if TYPE_CHECKING:
    from choral.api import Model
    from choral.jobs.record import JobRecord
    from choral.jobs.sync_client import Client

JOIN_TIMEOUT_S = 2.0  # a thread that reads from a pipe or a server may never end
RETRY_S = 1.0
MAX_TRIES = 60


@dataclass(frozen=True)
class SegmentReady:
    item: Input
    segment: Segment


@dataclass(frozen=True)
class Progressed:
    item: Input
    done_s: float
    total_s: float


@dataclass(frozen=True)
class InputFinished:
    item: Input
    transcript: Transcript


@dataclass(frozen=True)
class InputFailed:
    item: Input
    error: BaseException


Event = SegmentReady | Progressed | InputFinished | InputFailed


class Executor(Protocol):
    max_parallel: int  # inputs that may run at once

    def start(self, item: Input) -> None: ...

    def next_event(self) -> Event:
        """Wait for the next event."""
        ...

    def pending_events(self) -> Iterator[Event]:
        """The events that have arrived, without waiting."""
        ...

    def stop(self) -> None: ...


class LocalExecutor:
    """One thread per running input, all of them on one engine.

    The memory that one recording may take is divided between `max_parallel`.
    """

    def __init__(self, model: Model, options: TranscribeOptions, max_parallel: int) -> None:
        self._model, self._options, self.max_parallel = model, options, max_parallel
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._cancelled = threading.Event()
        self._threads: set[threading.Thread] = set()

    def start(self, item: Input) -> None:
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        # Daemon threads: a command that was asked to stop must not wait for one that reads from a pipe.
        thread = threading.Thread(target=self._run, args=[item], name=f"choral-{item.file_name}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def next_event(self) -> Event:
        return self._events.get()

    def pending_events(self) -> Iterator[Event]:
        while True:
            try:
                yield self._events.get_nowait()
            except Empty:
                return

    def stop(self) -> None:
        """Cancel what is running; closing the model wakes the threads that wait for its engine."""
        self._cancelled.set()
        self._model.close()
        deadline_s = time.monotonic() + JOIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _run(self, item: Input) -> None:
        try:
            self._events.put(InputFinished(item, self._transcribe(item)))
        except BaseException as error:  # bugs included: the main thread raises it
            self._events.put(InputFailed(item, error))

    def _transcribe(self, item: Input) -> Transcript:
        from choral.audio.recording import MAX_MEMORY_S, Recording

        max_memory_s = MAX_MEMORY_S / self.max_parallel
        with Recording.open(item.audio, max_memory_s=max_memory_s, cancel_event=self._cancelled) as recording:
            return self._model.transcribe(
                recording,
                self._options,
                on_segment=lambda segment: self._events.put(SegmentReady(item, segment)),
                on_progress=lambda done_s, total_s: self._events.put(Progressed(item, done_s, total_s)),
            )


class QueueExecutor:
    """Follows jobs that were submitted before; they keep running when this process ends."""

    def __init__(self, client: Client, job_ids: Mapping[Input, str]) -> None:
        self.max_parallel = len(job_ids)
        self._client = client
        self._items = {job_id: item for item, job_id in job_ids.items()}
        self._records: SimpleQueue[JobRecord | BaseException] = SimpleQueue()
        self._events: list[Event] = []  # made from the last record, in reverse order
        self._ended: set[str] = set()
        threading.Thread(target=self._watch, name="choral-watch", daemon=True).start()

    def start(self, item: Input) -> None:
        """Nothing to do: the job is in the queue."""

    def next_event(self) -> Event:
        while not self._events:
            self._apply(self._records.get())
        return self._events.pop()

    def pending_events(self) -> Iterator[Event]:
        while True:
            while self._events:
                yield self._events.pop()
            try:
                self._apply(self._records.get_nowait())
            except Empty:
                return

    def stop(self) -> None:
        """Nothing to do: closing the client ends the watching thread."""

    def _watch(self) -> None:
        """Read job records until all jobs have ended; retry while Redis is unavailable."""
        for n_tries in itertools.count(1):
            try:
                self._client.wait_all([*self._items], on_record=self._records.put)
                return
            except BaseException as error:  # the main thread raises it
                if not isinstance(error, RedisUnavailable) or n_tries == MAX_TRIES:
                    self._records.put(error)
                    return
            time.sleep(RETRY_S)

    def _apply(self, record: JobRecord | BaseException) -> None:
        if isinstance(record, BaseException):
            raise record
        item = self._items[record.id]
        if not record.has_ended:
            if record.duration_s is not None:
                self._events = [Progressed(item, record.done_s, record.duration_s)]
        elif record.id not in self._ended:
            self._ended.add(record.id)
            self._events = self._outcome(item, record.id)[::-1]

    def _outcome(self, item: Input, job_id: str) -> list[Event]:
        try:
            transcript = self._client.result(job_id)
        except ChoralError as error:
            return [InputFailed(item, error)]
        return [*(SegmentReady(item, segment) for segment in transcript.segments), InputFinished(item, transcript)]
