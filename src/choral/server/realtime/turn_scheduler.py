"""Schedules the transcription of a session's turns: one task at a time is in the engine, so overload limits itself.

Ended turns come first, in order; then, once there is enough new audio, a hypothesis of the turn being spoken. When the
engine is busy, a session pauses after each hypothesis for as long as it took, because the final texts of all sessions
matter more. Results come back through the session's inbox.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from choral.engine.window import Caller
from choral.errors import ChoralError
from choral.longform.chain_types import Steps
from choral.longform.transcriber import Transcriber
from choral.server.realtime.turn import Turn
from choral.server.realtime.turn_transcriber import OnText, TurnTranscriber

MIN_HYPOTHESIS_S = 0.8  # of a turn before its first hypothesis: less is hardly a word
HYPOTHESIS_INTERVAL_S = 0.4  # of new audio between two hypotheses
BUSY_S = 2.5  # a hypothesis that takes longer shows that the engine is busy
MAX_PAUSE_S = 5.0
MIN_QUEUED_S = 1.0  # that a turn in the queue counts for: each takes a whole window of the engine


@dataclass(frozen=True)
class TurnCallbacks:
    on_text: OnText
    on_completed: Callable[[Turn], None]
    on_failed: Callable[[Turn, ChoralError], None]


class TurnScheduler:
    def __init__(self, transcriber: Transcriber, callbacks: TurnCallbacks, post: Callable[[Future[Any]], None]) -> None:
        """`post` receives results on any thread; each is then given to `handle_result` on the session's thread."""
        self._engine, self._callbacks, self._post = transcriber.engine, callbacks, post
        self._transcriber = TurnTranscriber(transcriber, callbacks.on_text)
        self.caller = Caller("interactive")
        self._ended: deque[Turn] = deque()
        self._speaking: Turn | None = None
        self._turn: Turn | None = None  # of the task in progress
        self._steps: Steps[None] | None = None
        self._future: Future[Any] | None = None
        self.task_started_s = 0.0
        self._interval_s = HYPOTHESIS_INTERVAL_S

    @property
    def is_idle(self) -> bool:
        return self._steps is None and not self._ended

    @property
    def queued_s(self) -> float:
        """The audio of ended turns that are not transcribed yet; a short turn counts for a second."""
        return sum(max(MIN_QUEUED_S, turn.audio.duration_s) for turn in self._ended)

    def start_turn(self, turn: Turn) -> None:
        self._speaking = turn

    def end_turn(self, turn: Turn) -> None:
        """Queue the turn for its final text, and cancel a hypothesis of it in progress."""
        if self._turn is turn:
            self._cancel_task()
        if self._speaking is turn:
            self._speaking = None
        self._ended.append(turn)
        self.schedule()

    def discard_turn(self, turn: Turn) -> None:
        """Drop the turn being spoken."""
        self._speaking = None
        if self._turn is turn:
            self._cancel_task()
        self.schedule()

    def discard_ended(self, turn_id: str) -> None:
        """Drop an ended turn whose text is not complete."""
        turn = next((turn for turn in self._ended if turn.id == turn_id), None)
        if turn is not None:
            if self._turn is turn:
                self._cancel_task()
            self._ended.remove(turn)
            self.schedule()

    def schedule(self) -> None:
        """Start the next task, unless one is in progress."""
        while self._steps is None:
            if self._ended:
                self._start_task(self._ended[0], self._transcriber.finish(self._ended[0]))
            elif self._speaking is not None and self._is_due(self._speaking):
                self._start_task(self._speaking, self._transcriber.hypothesize(self._speaking))
            else:
                return

    def _is_due(self, turn: Turn) -> bool:
        return turn.duration_s >= MIN_HYPOTHESIS_S and turn.untranscribed_s >= self._interval_s

    def handle_result(self, future: Future[Any]) -> None:
        """Continue the task with the result of a window; late results of cancelled tasks are ignored."""
        if future is self._future:
            self._future = None
            self._continue_task(future)
            self.schedule()

    def close(self) -> None:
        self._discard_all()
        self._engine.cancel_all(self.caller)

    def _start_task(self, turn: Turn, steps: Steps[None]) -> None:
        self._turn, self._steps = turn, steps
        self.task_started_s = time.monotonic()
        self._continue_task(None)

    def _continue_task(self, future: Future[Any] | None) -> None:
        assert self._steps is not None
        try:
            window = self._steps.send(None if future is None else future.result())
            self._future = self._engine.submit(window, self.caller)
        except StopIteration:
            self._end_task(None)
        except CancelledError:  # the client has disconnected, and the engine refuses its windows
            self._discard_all()
        except ChoralError as error:
            self._end_task(error)
        else:
            self._future.add_done_callback(self._post)

    def _end_task(self, error: ChoralError | None) -> None:
        turn, took_s = self._turn, time.monotonic() - self.task_started_s
        self._interval_s = HYPOTHESIS_INTERVAL_S if took_s < BUSY_S else took_s + min(took_s, MAX_PAUSE_S)
        self._cancel_task()
        if turn is None or not turn.is_ended:
            return  # a failed hypothesis is followed by another one
        self._ended.popleft()
        if error is None:
            self._callbacks.on_completed(turn)
        else:
            self._callbacks.on_failed(turn, error)

    def _discard_all(self) -> None:
        self._ended.clear()
        self._speaking = None
        self._cancel_task()

    def _cancel_task(self) -> None:
        if self._future is not None:
            self._engine.cancel(self._future)
        if self._steps is not None:
            self._steps.close()
        self._turn = self._steps = self._future = None
