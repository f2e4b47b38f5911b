"""A session: the client's events in, turns cut and transcribed, OpenAI's events out.

Plain code without an event loop, run on one thread: whatever comes from outside, the engine's answers too, arrives one
by one in `take`. A bad event is answered with an error that names it, and changes nothing.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from choral.audio.constants import SAMPLE_RATE
from choral.audio.resample import LiveResampler
from choral.errors import ChoralError
from choral.longform.transcriber import Transcriber
from choral.server.api_errors import ApiError, to_api_error
from choral.server.realtime import server_events
from choral.server.realtime.objects import JsonObject
from choral.server.realtime.server_events import Event, new_id
from choral.server.realtime.session_config import SessionConfig
from choral.server.realtime.session_messages import (
    AudioReceived,
    ClientMessage,
    CloseConnection,
    FinishAndClose,
    Incoming,
    Outgoing,
    RejectedMessage,
    WindowDone,
)
from choral.server.realtime.session_registry import RealtimeMetrics
from choral.server.realtime.session_schema import SessionReader, session_fields
from choral.server.realtime.turn import Turn
from choral.server.realtime.turn_scheduler import TurnEvents, TurnScheduler
from choral.server.realtime.turn_segmenter import TurnSegmenter, TurnStarted

BUFFER = "input_audio_buffer"
CHARGE_EVERY_S = 5.0
MOST_ID_CHARACTERS = 512
MS = 1000


@dataclass(frozen=True)
class SessionDeps:
    """What a session works with, and whom it tells; `post` and `send` may be called on any thread."""

    transcriber: Transcriber
    models: tuple[str, ...]
    buffer_s: float  # of sound that may wait
    metrics: RealtimeMetrics
    post: Callable[[Incoming], None]
    send: Callable[[Outgoing], None]


class Session:
    def __init__(self, around: SessionDeps, config: SessionConfig, *, is_beta: bool) -> None:
        self._around, self._config, self._is_beta = around, config, is_beta
        self._reader = SessionReader(around.models, around.transcriber.tokenizer)
        self._id = new_id("sess")
        self._resampler, self._intake = LiveResampler(config.format.rate), TurnSegmenter(config)
        told = TurnEvents(self._show, self._complete, self._fail)
        self._desk = TurnScheduler(around.transcriber, told, lambda future: around.post(WindowDone(future)))
        self._last_item: str | None = None
        self._ending: FinishAndClose | None = None
        self._uncharged_s = 0.0
        self._handlers: dict[str, Callable[[JsonObject], None]] = {
            "session.update": self._update,
            "transcription_session.update": self._update_beta,
            f"{BUFFER}.append": self._append,
            f"{BUFFER}.commit": self._commit,
            f"{BUFFER}.clear": self._clear,
        }

    def begin(self) -> None:
        self._tell_session("created")

    def take(self, message: Incoming) -> None:
        match message:
            case ClientMessage(text):
                self._take_text(text)
            case RejectedMessage(why, code):
                self._send(server_events.error(ApiError(why, code=code), None))
            case WindowDone(future):
                self._desk.take(future)
            case FinishAndClose():
                self._finish(message)

    def give_up(self) -> None:
        """From any thread: windows leave the engine before its next step."""
        self._around.transcriber.engine.cancel_all(self._desk.caller)

    def end(self) -> None:
        self._desk.close()
        self._charge()

    def _take_text(self, text: str) -> None:
        event_id = None
        try:
            given = _parsed(text)
            event_id = given.text("event_id", most=MOST_ID_CHARACTERS)
            self._handler(given)(given)
        except ApiError as problem:
            self._send(server_events.error(problem, event_id))

    def _handler(self, given: JsonObject) -> Callable[[JsonObject], None]:
        name = given.needed("type")
        if name not in self._handlers:
            raise given.wrong("type", f"is {name[:100]!r}; transcription sessions know {', '.join(self._handlers)}")
        return self._handlers[name]

    def _update(self, given: JsonObject) -> None:
        self._configure(self._reader.update(self._config, given.child("session")), given, is_beta=False)

    def _update_beta(self, given: JsonObject) -> None:
        self._configure(self._reader.update_beta(self._config, given.child("session")), given, is_beta=True)

    def _configure(self, config: SessionConfig, given: JsonObject, *, is_beta: bool) -> None:
        given.end()
        hearing = (config.format, config.turns)
        if hearing != (self._config.format, self._config.turns) and not self._intake.is_empty:
            raise ApiError(
                "format and turn_detection cannot change in the middle of a turn: commit or clear the buffer first",
                param="session",
                code="input_audio_buffer_not_empty",
            )
        if config.format != self._config.format:
            self._resampler = LiveResampler(config.format.rate)
        self._config, self._is_beta = config, is_beta
        self._intake.change(config)
        self._tell_session("updated")

    def _append(self, given: JsonObject) -> None:
        encoded = given.needed("audio")
        given.end()
        if self._ending is not None:
            raise ApiError(f"{self._ending.why}, and no more audio is taken: connect again", code="session_ending")
        try:
            data = base64.b64decode(encoded, validate=True)
        except ValueError as error:
            raise given.wrong("audio", f"is not base64: {error}") from error
        samples = self._config.format.samples(data)
        duration_s = samples.size / self._config.format.rate
        waiting_s = self._intake.waiting_s + self._desk.waiting_s
        if waiting_s + duration_s > self._around.buffer_s:
            raise ApiError(
                f"{waiting_s:.1f} s of audio wait already, and these {duration_s:.1f} s were not taken: at most "
                f"{self._around.buffer_s:g} s may wait. Commit the buffer, or send more slowly",
                param="audio",
                code="input_audio_buffer_full",
            )
        self._uncharged_s += duration_s
        if self._uncharged_s >= CHARGE_EVERY_S:
            self._charge()
        for change in self._intake.add(self._resampler.push(samples)):
            if isinstance(change, TurnStarted):
                self._speech_started(change.turn)
            else:
                self._send(
                    server_events.event(
                        f"{BUFFER}.speech_stopped", audio_end_ms=_ms(change.stop), item_id=change.turn.id
                    )
                )
                self._commit_turn(change.turn)
        self._desk.look()

    def _speech_started(self, turn: Turn) -> None:
        self._send(server_events.event(f"{BUFFER}.speech_started", audio_start_ms=_ms(turn.start), item_id=turn.id))
        self._desk.listen(turn)

    def _commit(self, given: JsonObject) -> None:
        given.end()
        if self._config.turns is None:
            for _ in self._intake.add(self._resampler.flush()):
                pass
        self._commit_turn(self._intake.commit())

    def _commit_turn(self, turn: Turn) -> None:
        previous, self._last_item = self._last_item, turn.id
        self._send(server_events.event(f"{BUFFER}.committed", previous_item_id=previous, item_id=turn.id))
        for told in server_events.item_events(turn.id, previous, is_beta=self._is_beta):
            self._send(told)
        self._desk.finish(turn)

    def _clear(self, given: JsonObject) -> None:
        given.end()
        self._resampler = LiveResampler(self._config.format.rate)
        turn = self._intake.clear()
        if turn is not None:
            self._desk.forget(turn)
        self._send(server_events.event(f"{BUFFER}.cleared"))

    def _finish(self, ending: FinishAndClose) -> None:
        """A turn that is being spoken ends here; sound that nobody committed is not one."""
        self._ending = self._ending or ending
        if self._intake.turn is not None:
            self._commit_turn(self._intake.commit())
        self._close_if_finished()

    def _close_if_finished(self) -> None:
        if self._ending is not None and self._desk.is_idle:
            problem = ApiError(f"{self._ending.why}: the session is over", code="session_over")
            self._send(server_events.error(problem, None))
            self._around.send(CloseConnection(self._ending.close_code, self._ending.why))

    def _show(self, turn: Turn, text: str) -> None:
        delta = turn.text.add_text(text)
        if not delta:
            return
        if not turn.is_over:
            self._around.metrics.text_s.observe(time.monotonic() - self._desk.asked_s)
        self._send(server_events.delta(turn.id, delta))

    def _complete(self, turn: Turn) -> None:
        self._around.metrics.completed_s.observe(time.monotonic() - turn.ended_s)
        self._send(server_events.completed(turn.id, turn.text.text, turn.duration_s))
        self._close_if_finished()

    def _fail(self, turn: Turn, error: ChoralError) -> None:
        self._send(server_events.failed(turn.id, to_api_error(error)))
        self._close_if_finished()

    def _charge(self) -> None:
        if self._uncharged_s:
            self._around.metrics.audio_s.inc(self._uncharged_s)
            self._around.send(AudioReceived(self._uncharged_s))
            self._uncharged_s = 0.0

    def _tell_session(self, what: str) -> None:
        kind = "transcription_session" if self._is_beta else "session"
        fields = session_fields(self._config, self._id, is_beta=self._is_beta)
        self._send(server_events.event(f"{kind}.{what}", session=fields))

    def _send(self, event: Event) -> None:
        self._around.send(event)


def _parsed(text: str) -> JsonObject:
    try:
        return JsonObject(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the message is not JSON: {error}", code="invalid_json") from error


def _ms(n_samples: int) -> int:
    return n_samples * MS // SAMPLE_RATE
