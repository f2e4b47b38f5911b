"""A transcription session: client events in, turns segmented and transcribed, server events out.

Plain code without an event loop, run on one thread: every input, results of the engine included, arrives one by one in
`handle`. A bad event is answered with an error event and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from choral.audio.resample import LiveResampler
from choral.errors import ChoralError
from choral.longform.transcriber import Transcriber
from choral.server.api_errors import ApiError, to_api_error
from choral.server.model_names import ModelNames
from choral.server.realtime import server_events
from choral.server.realtime.audio_charges import AudioCharges
from choral.server.realtime.audio_formats import Int16
from choral.server.realtime.client_events import (
    ClientEvent,
    ConversationItemCreate,
    ConversationItemDelete,
    ConversationItemRetrieve,
    InputAudioBufferAppend,
    InputAudioBufferClear,
    InputAudioBufferCommit,
    SessionUpdate,
    TranscriptionSessionUpdate,
    event_id_of,
    parse_event,
    parse_object,
)
from choral.server.realtime.conversation import Conversation
from choral.server.realtime.outbox import CloseConnection
from choral.server.realtime.server_events import Event, new_id
from choral.server.realtime.session_config import ServedModel, SessionConfig
from choral.server.realtime.session_host import SessionMetrics
from choral.server.realtime.session_inbox import (
    ClientMessage,
    FinishAndClose,
    Incoming,
    RejectedMessage,
    WindowDone,
)
from choral.server.realtime.session_speakers import SessionSpeakers
from choral.server.realtime.session_warnings import (
    SessionWarning,
    session_warnings,
    turn_end_warning,
    unknown_field_warnings,
)
from choral.server.realtime.turn import AudioBuffer, Turn
from choral.server.realtime.turn_end import TurnEndDetector, find_turn_end_detector
from choral.server.realtime.turn_scheduler import TurnCallbacks, TurnScheduler
from choral.server.realtime.turn_segmenter import TurnSegmenter, TurnStarted
from choral.transcript import Token


@dataclass(frozen=True)
class SessionDeps:
    """What a session depends on; `post`, `send` and `charge` may be called on any thread."""

    transcriber: Transcriber
    names: ModelNames
    max_buffered_s: float
    metrics: SessionMetrics
    post: Callable[[Incoming], None]
    send: Callable[[Event | CloseConnection], None]
    charge: Callable[[float], None]  # seconds of audio, to the API key


@dataclass(frozen=True)
class SessionStart:
    """What the connection asks for."""

    config: SessionConfig
    is_beta: bool
    unknown_params: tuple[str, ...] = ()  # of its query


class Session:
    def __init__(self, deps: SessionDeps, start: SessionStart) -> None:
        self._deps, self._start, self._is_beta = deps, start, start.is_beta
        self._config = config = start.config
        self._served = ServedModel(deps.names, deps.transcriber.tokenizer)
        self._resampler, self._segmenter = LiveResampler(config.format.sample_rate), TurnSegmenter(config)
        callbacks = TurnCallbacks(self._on_text, self._on_completed, self._on_failed)
        self._scheduler = TurnScheduler(deps.transcriber, callbacks, lambda future: deps.post(WindowDone(future)))
        self._id, self._conversation = new_id("sess"), Conversation()
        self._closing: FinishAndClose | None = None
        self._charges = AudioCharges(deps.metrics, deps.charge)
        self._speakers = SessionSpeakers()

    def start(self) -> None:
        self._send_session("created")
        self._warn(unknown_field_warnings(self._start.unknown_params), None)
        # A client secret may ask for other models.
        self._segmenter.configure(self._config, self._find_turn_end(self._config, None))
        if self._config.transcription.diarize:
            try:
                self._speakers.load()
            except ApiError as error:
                self._deps.send(server_events.error(error))

    def handle(self, message: Incoming) -> None:
        match message:
            case ClientMessage(text):
                self._handle_event(text)
            case RejectedMessage(reason, code):
                self._deps.send(server_events.error(ApiError(reason, code=code)))
            case WindowDone(future):
                self._scheduler.handle_result(future)
            case FinishAndClose():
                self._finish(message)

    def cancel(self) -> None:
        """Remove the session's windows from the engine before its next step; called from any thread."""
        self._deps.transcriber.engine.cancel_all(self._scheduler.caller)

    def end(self) -> None:
        self._scheduler.close()
        self._charges.flush()

    def _handle_event(self, text: str) -> None:
        event_id = None
        try:
            fields = parse_object(text)
            event_id = event_id_of(fields)
            event, unknown = parse_event(fields, self._served)
            self._apply(event, event_id)
            self._warn(unknown_field_warnings(unknown), event_id)
        except ApiError as error:
            self._deps.send(server_events.error(error, event_id))

    def _apply(self, event: ClientEvent, event_id: str | None) -> None:
        match event:
            case SessionUpdate(session=session):
                self._configure(self._config.updated(session), event_id, is_beta=False)
                self._warn(session_warnings(session), event_id)
            case TranscriptionSessionUpdate(session=beta_session):
                self._configure(self._config.updated(beta_session), event_id, is_beta=True)
                self._warn(session_warnings(beta_session), event_id)
            case InputAudioBufferAppend(audio=audio):
                self._append(audio)
            case InputAudioBufferCommit():
                self._commit()
            case InputAudioBufferClear():
                self._clear()
            case ConversationItemCreate(item=item):
                self._create_item(item.id, b"".join(part.audio for part in item.content))
            case ConversationItemRetrieve(item_id=item_id):
                item_fields = self._conversation.retrieve(item_id)
                self._deps.send(server_events.make_event("conversation.item.retrieved", item=item_fields))
            case ConversationItemDelete(item_id=item_id):
                self._delete_item(item_id)

    def _warn(self, warnings: Iterable[SessionWarning], event_id: str | None) -> None:
        for each in warnings:
            self._deps.send(server_events.warning(each.param, each.message, each.code, event_id))

    def _find_turn_end(self, config: SessionConfig, event_id: str | None) -> TurnEndDetector | None:
        turns = config.turn_detection
        detector = find_turn_end_detector(turns)
        if detector is None and turns is not None and turns.is_semantic:
            self._warn([turn_end_warning(turns)], event_id)
        return detector

    def _configure(self, config: SessionConfig, event_id: str | None, *, is_beta: bool) -> None:
        is_new_format = config.format != self._config.format
        is_new_detection = config.turn_detection != self._config.turn_detection
        if (is_new_format or is_new_detection) and not self._segmenter.is_empty:
            raise ApiError(
                "format and turn_detection cannot change during a turn: commit or clear the buffer first",
                param="session",
                code="input_audio_buffer_not_empty",
            )
        if config.transcription.diarize:
            self._speakers.load()
        if is_new_format:
            self._resampler = LiveResampler(config.format.sample_rate)
        self._config, self._is_beta = config, is_beta
        turn_end = self._find_turn_end(config, event_id) if is_new_detection else self._segmenter.turn_end
        self._segmenter.configure(config, turn_end)
        self._send_session("updated")

    def _accept(self, audio: bytes) -> Int16:
        """The samples of audio that there is room for; they are charged."""
        if self._closing is not None:
            raise ApiError(
                f"{self._closing.reason}, so no more audio is accepted: connect again", code="session_ending"
            )
        samples = self._config.format.decode(audio)
        duration_s = samples.size / self._config.format.sample_rate
        self._require_space(duration_s)
        self._charges.add(duration_s)
        return samples

    def _append(self, audio: bytes) -> None:
        for change in self._segmenter.add(self._resampler.push(self._accept(audio))):
            turn = change.turn
            if isinstance(change, TurnStarted):
                if self._config.turn_detection is not None:
                    self._deps.send(server_events.speech_started(turn.id, turn.start))
                self._scheduler.start_turn(turn)
            else:
                self._deps.send(server_events.speech_stopped(turn.id, change.stop))
                self._commit_turn(turn)
        self._scheduler.schedule()

    def _require_space(self, duration_s: float) -> None:
        self._segmenter.drop_silence(duration_s, self._deps.max_buffered_s - self._scheduler.queued_s)
        waiting_s = self._segmenter.buffered_s + self._scheduler.queued_s
        if waiting_s + duration_s > self._deps.max_buffered_s:
            raise ApiError(
                f"{waiting_s:.1f} s of audio are waiting, so these {duration_s:.1f} s were not accepted: at most "
                f"{self._deps.max_buffered_s:g} s may wait. Commit the buffer, or send more slowly",
                param="audio",
                code="input_audio_buffer_full",
            )

    def _commit(self) -> None:
        if self._config.turn_detection is None:
            for _ in self._segmenter.add(self._resampler.flush()):
                pass
        self._commit_turn(self._segmenter.commit())

    def _create_item(self, item_id: str | None, audio: bytes) -> None:
        """Transcribe audio that is a turn by itself, beside the buffer."""
        self._conversation.require_new(item_id or "")
        resampler = LiveResampler(self._config.format.sample_rate)
        samples = self._accept(audio)
        turn = Turn.begin(self._config, 0, AudioBuffer(resampler.push(samples)), item_id)
        turn.append(resampler.flush())
        turn.end()
        self._commit_turn(turn, is_buffered=False)

    def _delete_item(self, item_id: str) -> None:
        self._conversation.delete(item_id)
        self._scheduler.discard_ended(item_id)
        self._deps.send(server_events.make_event("conversation.item.deleted", item_id=item_id))
        self._close_if_finished()

    def _commit_turn(self, turn: Turn, *, is_buffered: bool = True) -> None:
        previous_id = self._conversation.add(turn.id)
        if is_buffered:
            self._deps.send(server_events.committed(turn.id, previous_id))
        for event in server_events.item_added(turn.id, previous_id, is_beta=self._is_beta):
            self._deps.send(event)
        self._scheduler.end_turn(turn)

    def _clear(self) -> None:
        self._resampler = LiveResampler(self._config.format.sample_rate)
        turn = self._segmenter.clear()
        if turn is not None:
            self._scheduler.discard_turn(turn)
        self._deps.send(server_events.cleared())

    def _finish(self, closing: FinishAndClose) -> None:
        """Commit the turn being spoken, if it is long enough."""
        self._closing = self._closing or closing
        if self._segmenter.can_commit:
            self._commit_turn(self._segmenter.commit())
        self._close_if_finished()

    def _close_if_finished(self) -> None:
        if self._closing is not None and self._scheduler.is_idle:
            error = ApiError(f"{self._closing.reason}: the session is closed", code="session_over")
            self._deps.send(server_events.error(error))
            self._deps.send(CloseConnection(self._closing.close_code, self._closing.reason))

    def _on_text(self, turn: Turn, text: str, tokens: Sequence[Token]) -> None:
        if turn.logprobs is not None:
            turn.logprobs.add(tokens)
        delta = turn.text.add(text)
        if not delta:
            return
        if not turn.is_ended:
            self._deps.metrics.observe_text(time.monotonic() - self._scheduler.task_started_s)
        logprobs = None if turn.logprobs is None else turn.logprobs.take_unsent()
        self._deps.send(server_events.delta(turn.id, delta, logprobs))

    def _on_completed(self, turn: Turn) -> None:
        self._deps.metrics.observe_completed(time.monotonic() - turn.ended_s)
        fields = {**self._speakers.field_of(turn), **turn.requested_fields}
        self._conversation.complete(turn.id, turn.text.text)
        self._deps.send(server_events.completed(turn.id, turn.text.text, turn.duration_s, fields))
        self._close_if_finished()

    def _on_failed(self, turn: Turn, error: ChoralError) -> None:
        self._deps.send(server_events.failed(turn.id, to_api_error(error)))
        self._close_if_finished()

    def _send_session(self, change: str) -> None:
        name = "transcription_session" if self._is_beta else "session"
        session = self._config.to_json(self._id, is_beta=self._is_beta)
        self._deps.send(server_events.make_event(f"{name}.{change}", session=session))
