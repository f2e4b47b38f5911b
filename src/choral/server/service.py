"""The objects that every route uses: the model, the prep pool, the settings, and one way to transcribe.

`Service.transcribe` prepares audio in the pool's processes and transcribes it on a thread of its own, so the event loop
never blocks. The number of requests is bounded: beyond the limit they fail with `QueueFull` at once. Cancelling the
task that awaits it cancels the work; its windows leave the engine before the next step.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from choral.common.aio import LoopSupervisor, closing_in_thread, run_in_thread
from choral.server.admission import AdmissionControl, UploadAdmission
from choral.server.api_errors import ApiError
from choral.server.metrics import ServerMetrics
from choral.server.realtime.session_registry import SessionRegistry
from choral.server.settings import ServerSettings
from choral.server.tracing import set_attribute, span
from choral.types import Priority, Segment, TranscribeOptions, Transcript

if TYPE_CHECKING:
    from choral.api import Model
    from choral.audio.prep.input_sources import PrepInput
    from choral.audio.prep.pool import PrepPool
    from choral.audio.recording import Recording
    from choral.longform.transcriber import Transcription

OnSegment = Callable[[Segment], None]
OnProgress = Callable[[float, float], None]  # seconds done, total seconds
OnDuration = Callable[[float], None]


@dataclass(frozen=True)
class Service:
    model: Model
    prep: PrepPool
    settings: ServerSettings
    requests: AdmissionControl
    uploads: UploadAdmission
    metrics: ServerMetrics
    realtime: SessionRegistry
    engine_slots: asyncio.Semaphore
    loops: LoopSupervisor

    @classmethod
    def of(cls, model: Model, prep: PrepPool, settings: ServerSettings) -> Service:
        metrics = ServerMetrics(model, prep)
        return cls(
            model,
            prep,
            settings,
            requests=AdmissionControl(settings.queue_limit, "requests"),
            uploads=UploadAdmission(settings.uploads, settings.upload_min_rate),
            metrics=metrics,
            realtime=SessionRegistry(settings.realtime_sessions, metrics.registry),
            engine_slots=asyncio.Semaphore(settings.at_once or model.requests_at_once),
            loops=LoopSupervisor(),
        )

    @property
    def model_id(self) -> str:
        """The model's name for clients; of a path, only its last part."""
        name = self.model.name
        return Path(name).name if os.path.exists(name) else name

    def require_supported(self, options: TranscribeOptions, *, task_param: str) -> None:
        """Refuse what an English-only model cannot do; `task_param` is the field to blame for a translation."""
        if self.model.is_multilingual:
            return
        if options.task == "translate":
            text = f"{self.model_id} is English-only and cannot translate: serve a multilingual model"
            raise ApiError(text, param=task_param, code="unsupported_value")
        if options.language not in (None, "en"):
            text = f"{self.model_id} is English-only: omit `language`, or serve a multilingual model"
            raise ApiError(text, param="language", code="unsupported_value")

    async def transcribe(
        self,
        audio: PrepInput,
        options: TranscribeOptions,
        *,
        priority: Priority = "interactive",
        client_waits: bool = False,
        on_segment: OnSegment | None = None,
        on_progress: OnProgress | None = None,
        on_duration: OnDuration | None = None,
    ) -> Transcript:
        """The callbacks run in the event loop, all of them before this returns.

        `client_waits` shortens the time limits for fetching and decoding. `on_duration` gets the duration of the audio
        before it is transcribed; an exception in it refuses the request.
        """
        with self.requests.admit():
            arrived_s = time.monotonic()
            set_attribute("choral.model", self.model_id)
            with span("prep"):
                future = self.prep.submit(audio, loudness=options.loudness, is_interactive=client_waits)
                prepared = await asyncio.wrap_future(future)
            with closing_in_thread(prepared.recording):
                set_attribute("choral.audio_s", prepared.recording.duration)
                if on_duration is not None:
                    on_duration(prepared.recording.duration)
                prepared_s = time.monotonic()
                self.metrics.prep_s.observe(prepared_s - arrived_s)
                async with AsyncExitStack() as stack:
                    with span("wait for the engine"):
                        await stack.enter_async_context(self.engine_slots)
                    self.metrics.queue_s.observe(time.monotonic() - prepared_s)
                    run = TranscriptionRun(self.metrics, arrived_s, on_segment, on_progress)
                    with span("transcribe"):
                        return await run.run(self.model, prepared.recording, options, priority)


class TranscriptionRun:
    """One recording in the engine, driven on its own thread."""

    def __init__(
        self, metrics: ServerMetrics, arrived_s: float, on_segment: OnSegment | None, on_progress: OnProgress | None
    ) -> None:
        self._metrics, self._arrived_s = metrics, arrived_s
        self._on_segment, self._on_progress = on_segment, on_progress
        self._loop = asyncio.get_running_loop()
        self._cancel_event = threading.Event()

    async def run(
        self, model: Model, recording: Recording, options: TranscribeOptions, priority: Priority
    ) -> Transcript:
        recording.cancel_event = self._cancel_event
        transcription = model.begin(recording, options, on_progress=self._report_progress, priority=priority)
        started_s = time.monotonic()
        try:
            transcript = await run_in_thread(lambda: self._consume(transcription), "request")
        finally:
            self._cancel_event.set()
            transcription.cancel()  # no effect if it has ended
        self._metrics.audio_s.inc(transcript.duration)
        self._metrics.audio_speed_ratio.observe(transcript.duration / max(1e-3, time.monotonic() - started_s))
        return transcript

    def _consume(self, transcription: Transcription) -> Transcript:
        for segment in transcription:
            if segment.id == 0:
                self._metrics.first_text_s.observe(time.monotonic() - self._arrived_s)
            if self._on_segment is not None:
                self._loop.call_soon_threadsafe(self._on_segment, segment)
        return transcription.transcript()

    def _report_progress(self, done_s: float, total_s: float) -> None:
        if self._on_progress is not None:
            self._loop.call_soon_threadsafe(self._on_progress, done_s, total_s)
