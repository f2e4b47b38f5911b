"""The jobs that run in this process: each one task, from the audio on disk to its outcome in the table.

Whatever goes wrong becomes the outcome of this job alone. A server without room, or one that ends, is no fault of the
job: it goes back to where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from choral.audio.prep.inputs import OpenFile
from choral.common.backoff import backoff_s
from choral.errors import ChoralError, EngineClosed, EngineError, QueueFull
from choral.jobs.record import JobRecord, State, Timings, transcript_to_json
from choral.jobs.request import JobRequest
from choral.server.admission import CompletionRate
from choral.server.jobs.async_table import AsyncTable
from choral.server.jobs.job_billing import JobBilling
from choral.server.jobs.job_table import JobTable
from choral.server.jobs.news import ChangeNotifier
from choral.server.service import Service
from choral.storage import storage_errors
from choral.types import Segment, Transcript

log = logging.getLogger("choral.server")
MAX_ATTEMPTS = 4  # of a job that fails for a reason that may pass
NO_ROOM_PAUSE_S = 1.0
LAST_WORDS_S = 5.0  # to write down what is given up; what is not is run again as after a crash


@dataclass(eq=False)
class RunningJob:
    """Changed in the event loop only."""

    record: JobRecord
    segments: list[Segment] = field(default_factory=list)
    is_cancel_wanted: bool = False
    work: asyncio.Task[Transcript] | None = None
    whole: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.record.id

    def update(self, **changes: Any) -> None:
        self.record = dataclasses.replace(self.record, **changes)


class LocalRunner:
    def __init__(
        self,
        service: Service,
        disk: AsyncTable,
        news: ChangeNotifier,
        wake: asyncio.Event,
        charges: JobBilling,
        retry_s: float,
    ) -> None:
        self._service, self._disk, self._news, self._wake = service, disk, news, wake
        self._charges, self._retry_s = charges, retry_s
        self._under_way: dict[str, RunningJob] = {}
        self.completion_rate, self._n_ended = CompletionRate(), 0

    def __len__(self) -> int:
        return len(self._under_way)

    def of(self, job_id: str) -> RunningJob | None:
        return self._under_way.get(job_id)

    def begin(self, run: RunningJob) -> None:
        if not self._under_way:
            self.completion_rate.restart()
        self._under_way[run.id] = run
        run.work = asyncio.create_task(self._transcript(run))
        run.whole = asyncio.create_task(self._see_through(run))

    async def cancel(self, job_id: str) -> None:
        run = self._under_way.get(job_id)
        if run is not None and run.work is not None and run.whole is not None:
            run.is_cancel_wanted = True
            run.work.cancel()
            await asyncio.wait({run.whole})

    async def wait(self, timeout_s: float) -> None:
        tasks = [run.whole for run in self._under_way.values() if run.whole is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def hand_back_all(self) -> None:
        runs = list(self._under_way.values())
        for run in runs:
            assert run.work is not None
            run.work.cancel()
        await self.wait(LAST_WORDS_S)

    async def _see_through(self, run: RunningJob) -> None:
        self._news.tell(run.id)
        try:
            await self._outcome(run)
        finally:
            del self._under_way[run.id]
            self._news.tell(run.id)
            self._wake.set()

    async def _outcome(self, run: RunningJob) -> None:
        assert run.work is not None
        await asyncio.wait({run.work})
        if run.work.cancelled():
            await self._hand_back(run)
            return
        match run.work.exception():
            case None:
                await self._end(run, "succeeded", transcript=run.work.result())
            case QueueFull():  # others have all the places just now
                await asyncio.sleep(NO_ROOM_PAUSE_S)
                await self._hand_back(run)
            case EngineClosed():
                await self._hand_back(run)
            case ChoralError() as error:
                await self._fail(run, error)
            case error:  # a mistake of ours must not take the other jobs along
                log.error("a mistake in Choral: please report it", exc_info=error, extra={"job": run.id})
                text = f"a mistake in Choral ({type(error).__name__}: {error}): please report it"
                await self._fail(run, EngineError(text))

    async def _transcript(self, run: RunningJob) -> Transcript:
        request = run.record.request
        started_s = time.monotonic()

        def begin(duration_s: float) -> None:
            self._charges.charge(request.id, duration_s)
            timings = Timings(
                queued_s=(run.record.started_at or 0.0) - run.record.queued_at, decode_s=time.monotonic() - started_s
            )
            run.update(phase="engine", duration_s=duration_s, timings=timings)
            self._news.tell(run.id)

        def move(done_s: float, total_s: float) -> None:
            run.update(done_s=done_s)
            self._news.tell(run.id)

        def take(segment: Segment) -> None:
            run.segments.append(segment)
            self._news.tell(run.id)

        run.update(phase="prep")
        with self._opened(request) as audio:
            transcript = await self._service.transcribe(
                audio,
                request.options,
                priority=request.priority,
                on_segment=take,
                on_progress=move,
                on_duration=begin,
            )
        engine_s = time.monotonic() - started_s - (run.record.timings.decode_s or 0.0)
        run.update(timings=dataclasses.replace(run.record.timings, engine_s=engine_s))
        return transcript

    @contextlib.contextmanager
    def _opened(self, request: JobRequest) -> Iterator[OpenFile | str]:
        if request.audio.kind == "url":
            yield request.audio.place
            return
        with storage_errors(Path(request.audio.place)):
            file = open(request.audio.place, "rb")  # noqa: SIM115
        with file:
            yield OpenFile(request.audio.name, file)

    async def _hand_back(self, run: RunningJob) -> None:
        if run.is_cancel_wanted:
            await self._end(run, "cancelled")
        else:
            await self._disk.retry_until_written(lambda table: table.requeue(run.id))

    async def _fail(self, run: RunningJob, error: ChoralError) -> None:
        text, kind = str(error), type(error).__name__
        if run.is_cancel_wanted:
            await self._end(run, "cancelled")
        elif error.is_retryable and run.record.attempts < MAX_ATTEMPTS:
            due_at = time.time() + backoff_s(run.record.attempts, self._retry_s)
            await self._disk.retry_until_written(lambda table: table.reschedule(run.id, due_at, text, kind))
        else:
            run.update(error=text, error_kind=kind)
            await self._end(run, "dead" if error.is_retryable else "failed")

    async def _end(self, run: RunningJob, state: State, *, transcript: Transcript | None = None) -> None:
        """The outcome first, the audio after it: should the process end in between, a start clears up."""
        ended = dataclasses.replace(run.record, state=state, ended_at=time.time(), phase=None)
        if transcript is not None:
            ended = dataclasses.replace(ended, duration_s=transcript.duration, error=None, error_kind=None)

        def write(table: JobTable) -> None:
            table.end(ended, None if transcript is None else transcript_to_json(transcript))
            table.drop_audio(run.id)

        await self._disk.retry_until_written(write)
        self._service.metrics.jobs.labels(state).inc()
        self._n_ended += 1
        self.completion_rate.record(self._n_ended)
