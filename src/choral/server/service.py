"""What every route of the server works with: the model, the prep pool, the settings, and one way to transcribe.

`Service.transcribe` prepares audio in the pool's processes and transcribes it on a thread of its own, so the event loop
is never held up. It is bounded: too many requests are `QueueFull` at once. Cancelling the task that awaits it ends the
work wherever it is; windows leave the engine before its next step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from choral.audio.stoppable import stop_with
from choral.jobs.tasks import in_thread
from choral.server.room import Room
from choral.server.settings import ServerSettings
from choral.types import Priority, Segment, TranscribeOptions, Transcript

if TYPE_CHECKING:
    from choral.api import Model
    from choral.audio.prep.pool import AudioPlace, Prepared, PrepPool

Event = TypeVar("Event")
OnSegment = Callable[[Segment], None]
OnProgress = Callable[[float, float], None]  # seconds done, seconds in all


@dataclass(frozen=True)
class Service:
    model: Model
    prep: PrepPool
    settings: ServerSettings
    requests: Room
    uploads: Room
    engine_room: asyncio.Semaphore = field(repr=False)

    @classmethod
    def of(cls, model: Model, prep: PrepPool, settings: ServerSettings) -> Service:
        return cls(
            model,
            prep,
            settings,
            requests=Room(settings.queue_limit, "requests"),
            uploads=Room(settings.uploads, "uploads"),
            engine_room=asyncio.Semaphore(settings.at_once or model.requests_at_once),
        )

    async def transcribe(
        self,
        audio: AudioPlace,
        options: TranscribeOptions,
        *,
        priority: Priority = "interactive",
        on_segment: OnSegment | None = None,
        on_progress: OnProgress | None = None,
    ) -> Transcript:
        """The callbacks are called in the event loop, all of them before this returns."""
        with self.requests.place():
            prepared = await asyncio.wrap_future(self.prep.submit(audio, loudness=options.loudness))
            with prepared.recording:
                async with self.engine_room:
                    return await self._heard(prepared, options, priority, on_segment, on_progress)

    async def _heard(
        self,
        prepared: Prepared,
        options: TranscribeOptions,
        priority: Priority,
        on_segment: OnSegment | None,
        on_progress: OnProgress | None,
    ) -> Transcript:
        loop = asyncio.get_running_loop()

        def tell_progress(done_s: float, total_s: float) -> None:
            if on_progress is not None:
                loop.call_soon_threadsafe(on_progress, done_s, total_s)

        wanted_no_more = threading.Event()
        stop_with(wanted_no_more, prepared.recording)
        transcription = self.model.begin(prepared.recording, options, on_progress=tell_progress, priority=priority)

        def work() -> Transcript:
            for segment in transcription:
                if on_segment is not None:
                    loop.call_soon_threadsafe(on_segment, segment)
            return transcription.transcript()

        try:
            return await in_thread(work, "request")
        finally:
            wanted_no_more.set()
            transcription.stop()  # after its end this does nothing
