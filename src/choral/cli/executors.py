"""Two ways to transcribe the inputs of a run: requests to the engine of this process, or jobs in the queue.

Both report events to the main thread, which alone draws, prints and writes results: Ctrl-C is delivered only there.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from choral.cli.inputs import Input
from choral.errors import ChoralError, RedisUnavailable
from choral.options import TranscribeOptions
from choral.serving.request_events import (
    Progressed,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    SegmentReady,
    TranscribeRequest,
)

if TYPE_CHECKING:
    from choral.jobs.record import JobRecord
    from choral.jobs.sync_client import Client
    from choral.serving.runtime import Runtime

RETRY_S = 1.0
MAX_TRIES = 60

Event = tuple[Input, RequestEvent]


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


class RuntimeExecutor:
    """Runs inputs on the engine of this process; the runtime decides where the rest of the work is done."""

    def __init__(
        self, runtime: Runtime, options: TranscribeOptions, max_parallel: int, *, text: str | None = None
    ) -> None:
        """With a `text`, inputs are aligned with it."""
        self._runtime, self._options, self.max_parallel, self._text = runtime, options, max_parallel, text
        self._events: SimpleQueue[Event] = SimpleQueue()

    def start(self, item: Input) -> None:
        request = TranscribeRequest(audio=item.audio, options=self._options, text=self._text)
        self._runtime.start(request, lambda event: self._events.put((item, event)))

    def next_event(self) -> Event:
        return self._events.get()

    def pending_events(self) -> Iterator[Event]:
        while True:
            try:
                yield self._events.get_nowait()
            except Empty:
                return

    def stop(self) -> None:
        """Cancel what is running, and end its processes."""
        self._runtime.close()


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
                self._events = [(item, Progressed(record.done_s, record.duration_s))]
        elif record.id not in self._ended:
            self._ended.add(record.id)
            self._events = self._outcome(item, record.id)[::-1]

    def _outcome(self, item: Input, job_id: str) -> list[Event]:
        try:
            transcript = self._client.result(job_id)
        except ChoralError as error:
            return [(item, RequestFailed(error))]
        segments: list[Event] = [(item, SegmentReady(segment)) for segment in transcript.segments]
        return [*segments, (item, RequestFinished(transcript))]
