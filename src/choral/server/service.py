"""The objects that every route uses: the models, the settings, and one way to transcribe.

`Service.run` runs a request in the processes of its model's runtime, so the event loop only hears of its events. The
number of requests is bounded: beyond the limit they fail with `QueueFull` at once. Cancelling the task that awaits it
cancels the work; its windows leave the engine before the next step.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from choral.common.aio import LoopSupervisor
from choral.options import Priority, TranscribeOptions
from choral.server.admission import AdmissionControl, UploadAdmission
from choral.server.api_errors import ApiError
from choral.server.metrics import ServerMetrics
from choral.server.model_loader import LoadedModel
from choral.server.model_names import ModelNames
from choral.server.model_pool import ModelPool
from choral.server.realtime.session_host import SessionHost, SessionLimits
from choral.server.realtime.session_registry import SessionRegistry
from choral.server.settings import ServerSettings
from choral.server.tracing import set_attribute, span
from choral.serving.request_events import (
    AudioOpened,
    OnEvent,
    RequestEvent,
    SegmentReady,
    TranscribeRequest,
)
from choral.speakers.reference_clips import ReferenceClip
from choral.transcript import Segment, Transcript

if TYPE_CHECKING:
    from choral.serving.input_sources import ServiceAudio

OnSegment = Callable[[Segment], None]
OnDuration = Callable[[float], None]


@dataclass(frozen=True)
class Service:
    models: ModelPool
    settings: ServerSettings
    requests: AdmissionControl
    uploads: UploadAdmission
    metrics: ServerMetrics
    realtime: SessionRegistry
    loops: LoopSupervisor

    @classmethod
    def of(cls, models: ModelPool, settings: ServerSettings) -> Service:
        metrics = ServerMetrics(models)
        return cls(
            models,
            settings,
            requests=AdmissionControl(settings.queue_limit, "requests"),
            uploads=UploadAdmission(settings.uploads, settings.upload_min_rate),
            metrics=metrics,
            realtime=SessionRegistry(settings.realtime_sessions, metrics.registry),
            loops=LoopSupervisor(),
        )

    @property
    def names(self) -> ModelNames:
        return self.models.names

    @property
    def model_id(self) -> str:
        """Of the default model."""
        return self.names.default

    def require_supported(self, options: TranscribeOptions, *, task_param: str, model: str | None = None) -> None:
        """Refuse what an English-only model cannot do; `task_param` is the field to blame for a translation."""
        info = self.models.info(model)
        if info.is_multilingual:
            return
        if options.task == "translate":
            text = f"{info.id} is English-only and cannot translate: use a multilingual model"
            raise ApiError(text, param=task_param, code="unsupported_value")
        if options.language not in (None, "en"):
            text = f"{info.id} is English-only: omit `language`, or use a multilingual model"
            raise ApiError(text, param="language", code="unsupported_value")
        if options.multilingual or options.languages:
            param = "multilingual" if options.multilingual else "languages"
            text = f"{info.id} is English-only: omit `{param}`, or use a multilingual model"
            raise ApiError(text, param=param, code="unsupported_value")

    @asynccontextmanager
    async def hold_model(self, name: str | None) -> AsyncIterator[LoadedModel]:
        """Hold a model for a live session; waiting until it is loaded counts as a request."""
        async with AsyncExitStack() as stack:
            with self.requests.admit():
                loaded = await stack.enter_async_context(self.models.use(name))
            yield loaded

    def session_host(self, loaded: LoadedModel) -> SessionHost:
        """For live sessions with this model in the server's process."""
        return SessionHost(
            transcriber=loaded.transcriber,
            names=self.names.of_model(loaded.id),
            limits=SessionLimits.of(self.settings),
            metrics=self.realtime.metrics,
            slots=self.realtime.slots,
        )

    async def run(self, request: TranscribeRequest, on_event: OnEvent, *, is_refusable: bool = True) -> Transcript:
        """An exception in `on_event` refuses the request: if it `is_refusable`, `AudioOpened` comes before all text."""
        with self.requests.admit(), ExitStack() as spans:
            follower = RequestFollower(self.metrics, spans, on_event, is_refusable=is_refusable)
            async with self.models.use(request.model) as loaded:
                set_attribute("choral.model", loaded.id)
                transcript = await loaded.running.transcribe(request, follower.apply)
            follower.finish(transcript, loaded.id)
            return transcript

    async def transcribe(
        self,
        audio: ServiceAudio,
        options: TranscribeOptions,
        *,
        model: str | None = None,
        text: str | None = None,
        wants_text: bool = True,
        references: tuple[ReferenceClip, ...] = (),
        priority: Priority = "interactive",
        client_waits: bool = False,
        on_segment: OnSegment | None = None,
        on_duration: OnDuration | None = None,
    ) -> Transcript:
        """The callbacks run in the event loop, all of them before this returns. With a `text`, it is aligned;
        without `wants_text`, only speakers are found, and those of `references` get their names.

        `client_waits` shortens the time limits for fetching and decoding. `on_duration` gets the duration of the audio;
        an exception in it refuses the request, so no text is reported before: without it, text comes earlier.
        """
        request = TranscribeRequest(
            audio=audio,
            options=options,
            model=model,
            text=text,
            wants_text=wants_text,
            references=references,
            priority=priority,
            client_waits=client_waits,
            wants_progress=False,
        )

        def apply(event: RequestEvent) -> None:
            if isinstance(event, AudioOpened) and on_duration is not None:
                on_duration(event.duration_s)
            elif isinstance(event, SegmentReady) and on_segment is not None:
                on_segment(event.segment)

        return await self.run(request, apply, is_refusable=on_duration is not None)


class RequestFollower:
    """What the events of a request mean to the server: metrics, and a span for each of its two phases."""

    def __init__(self, metrics: ServerMetrics, spans: ExitStack, on_event: OnEvent, *, is_refusable: bool) -> None:
        self._metrics, self._spans, self._on_event = metrics, spans, on_event
        self._arrived_s = self._decoding_s = time.monotonic()
        self._is_refusable = is_refusable  # until the duration is known
        self._early: list[RequestEvent] = []  # to be reported if it is not refused
        spans.enter_context(span("prep"))

    def apply(self, event: RequestEvent) -> None:
        if isinstance(event, AudioOpened):
            self._open(event)
        elif self._is_refusable:
            self._early.append(event)
        else:
            if isinstance(event, SegmentReady) and event.segment.id == 0:
                self._metrics.first_text_s.observe(time.monotonic() - self._arrived_s)
            self._on_event(event)

    def _open(self, opened: AudioOpened) -> None:
        set_attribute("choral.audio_s", opened.duration_s)
        self._on_event(opened)
        self._metrics.queue_s.observe(opened.waited_s)
        self._metrics.prep_s.observe(opened.fetch_s + opened.decode_s)
        self._decoding_s = time.monotonic() - opened.decode_s
        self._spans.pop_all().close()
        self._spans.enter_context(span("transcribe"))
        self._is_refusable = False
        for event in self._early:
            self.apply(event)
        self._early.clear()

    def finish(self, transcript: Transcript, model_id: str) -> None:
        self._metrics.audio_s.labels(model_id).inc(transcript.duration)
        spent_s = max(1e-3, time.monotonic() - self._decoding_s)
        self._metrics.audio_speed_ratio.observe(transcript.duration / spent_s)
