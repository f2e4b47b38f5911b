"""The turns of a session and the engine: one piece of work at a time is under way, so that overload sheds itself.

Turns that are over come first, in their order; then, as soon as there is enough new sound, a hypothesis of the one
that is being spoken. Where the engine is busy, a session rests after each as long as it took: texts of turns that are
over matter more, its own and those of others. Answers come back through the session's own inbox.
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
from choral.longform.fallback import Steps
from choral.longform.transcriber import Transcriber
from choral.server.realtime.turn import Turn
from choral.server.realtime.turn_transcriber import OnText, TurnTranscriber

FIRST_S = 0.8  # of a turn, before its first hypothesis: less is hardly a word
STEP_S = 0.4  # of new sound that a hypothesis is worth
BUSY_S = 2.5  # an engine that takes longer for one has other things to do
LONGEST_REST_S = 5.0


@dataclass(frozen=True)
class TurnEvents:
    """Who is told: text to show, the end of a turn, or why it has none."""

    on_text: OnText
    on_done: Callable[[Turn], None]
    on_failed: Callable[[Turn, ChoralError], None]


class TurnScheduler:
    def __init__(self, transcriber: Transcriber, events: TurnEvents, post: Callable[[Future[Any]], None]) -> None:
        """`post` takes results from any thread; each is given to `take` on the session's own."""
        self._engine, self._events, self._post = transcriber.engine, events, post
        self._hearing = TurnTranscriber(transcriber, events.on_text)
        self.caller = Caller("interactive")
        self._over: deque[Turn] = deque()
        self._spoken: Turn | None = None
        self._turn: Turn | None = None  # the one that is worked on
        self._steps: Steps[None] | None = None
        self._future: Future[Any] | None = None
        self.asked_s = 0.0  # when the work under way began
        self._step_s = STEP_S  # of new sound for the next hypothesis

    @property
    def is_idle(self) -> bool:
        return self._steps is None and not self._over

    @property
    def waiting_s(self) -> float:
        """Of sound in turns that are over."""
        return sum(turn.audio.duration_s for turn in self._over)

    def listen(self, turn: Turn) -> None:
        """A turn begins to be spoken."""
        self._spoken = turn

    def finish(self, turn: Turn) -> None:
        """It is over: a hypothesis of it that is under way is not needed any more."""
        if self._turn is turn:
            self._stop()
        if self._spoken is turn:
            self._spoken = None
        self._over.append(turn)
        self.look()

    def forget(self, turn: Turn) -> None:
        """Nobody wants the text of the turn that is being spoken."""
        self._spoken = None
        if self._turn is turn:
            self._stop()
        self.look()

    def look(self) -> None:
        """Starts what is next, if nothing is under way."""
        while self._steps is None:
            if self._over:
                self._begin(self._over[0], self._hearing.rest(self._over[0]))
            elif self._spoken is not None and self._is_due(self._spoken):
                self._begin(self._spoken, self._hearing.more(self._spoken))
            else:
                return

    def _is_due(self, turn: Turn) -> bool:
        return turn.duration_s >= FIRST_S and turn.unheard_s >= self._step_s

    def take(self, future: Future[Any]) -> None:
        """The result of a window; one of work that was stopped is late, and nobody's."""
        if future is self._future:
            self._future = None
            self._go_on(future)
            self.look()

    def close(self) -> None:
        self._forget_all()
        self._engine.cancel_all(self.caller)

    def _begin(self, turn: Turn, steps: Steps[None]) -> None:
        self._turn, self._steps = turn, steps
        self.asked_s = time.monotonic()
        self._go_on(None)

    def _go_on(self, future: Future[Any] | None) -> None:
        assert self._steps is not None
        try:
            window = self._steps.send(None if future is None else future.result())
            self._future = self._engine.submit(window, self.caller)
        except StopIteration:
            self._end(None)
        except CancelledError:  # the client has left, and the engine takes nothing more
            self._forget_all()
        except ChoralError as error:
            self._end(error)
        else:
            self._future.add_done_callback(self._post)

    def _end(self, error: ChoralError | None) -> None:
        turn, took_s = self._turn, time.monotonic() - self.asked_s
        self._step_s = STEP_S if took_s < BUSY_S else took_s + min(took_s, LONGEST_REST_S)
        self._stop()
        if turn is None or not turn.is_over:
            return  # a hypothesis that failed is no loss: the next one is as good
        self._over.popleft()
        if error is None:
            self._events.on_done(turn)
        else:
            self._events.on_failed(turn, error)

    def _forget_all(self) -> None:
        self._over.clear()
        self._spoken = None
        self._stop()

    def _stop(self) -> None:
        if self._future is not None:
            self._engine.cancel(self._future)
        if self._steps is not None:
            self._steps.close()
        self._turn = self._steps = self._future = None
