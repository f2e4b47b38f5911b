"""Sound as it comes, cut into turns: by the voice detector, or by the client where that is switched off.

Between turns only as much is kept as a turn may start before its speech.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.server.api_errors import ApiError
from choral.server.realtime.buffer import AudioBuffer
from choral.server.realtime.session_config import ServerVad, SessionConfig
from choral.server.realtime.streaming_vad import SpeechEnd, SpeechStart, StreamingVad
from choral.server.realtime.turn import Turn

SHORTEST_MS = 100
CONFIRMATION_S = 0.5  # beyond the silence that ends a turn: speech is told at most so long after it began

Int16 = npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class TurnStarted:
    turn: Turn


@dataclass(frozen=True, eq=False)
class TurnStopped:
    turn: Turn
    stop: int  # the sample behind the turn's last


class TurnSegmenter:
    """Positions are samples from the first of the session."""

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
        self.n_heard = 0
        self.turn: Turn | None = None  # the one that is being spoken
        self._between = AudioBuffer()  # sound that belongs to no turn yet
        self._voice: StreamingVad | None = None
        self._voice_start = 0
        self._listen_anew()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits for a commit."""
        return self.turn is None and (self.config.turns is not None or not len(self._between))

    @property
    def waiting_s(self) -> float:
        return self._between.duration_s + (self.turn.audio.duration_s if self.turn is not None else 0.0)

    def change(self, config: SessionConfig) -> None:
        """Between turns only; sound that was kept from before is forgotten."""
        is_same = config.turns == self.config.turns
        self.config = config
        if not is_same:
            self._listen_anew()

    def add(self, samples: Int16) -> Iterator[TurnStarted | TurnStopped]:
        if self.config.turns is None or self._voice is None:
            self._between.append(samples)
            self.n_heard += samples.size
            return
        for frame, change in self._voice.hear(samples):
            (self._between if self.turn is None else self.turn).append(frame)
            self.n_heard += frame.size
            match change:
                case SpeechStart(sample):
                    yield TurnStarted(self._start(self._voice_start + sample, self.config.turns))
                case SpeechEnd():
                    yield TurnStopped(self._end(), self.n_heard)
            self._trim(self.config.turns)

    def commit(self) -> Turn:
        """What lies in the buffer is a turn, whether or not it is over."""
        if self.turn is not None and self._voice is not None:
            self.turn.append(self._voice.rest)
            self.n_heard += self._voice.rest.size
            turn = self._end()
            self._listen_anew()
            return turn
        has_ms = 0 if self.config.turns else round(self._between.duration_s * 1000)
        if has_ms < SHORTEST_MS:
            why = "no speech was heard since the last turn" if self.config.turns else f"it has {has_ms} ms of audio"
            raise ApiError(
                f"there is nothing to commit in the buffer: {why}, and a turn has {SHORTEST_MS} ms at least",
                code="input_audio_buffer_commit_empty",
            )
        turn = Turn(self.config.hints, self.n_heard - len(self._between), self._between)
        turn.end()
        self._between = AudioBuffer()
        return turn

    def clear(self) -> Turn | None:
        """Forgets what lies in the buffer; the turn that was being spoken, if there was one."""
        turn, self.turn = self.turn, None
        self._listen_anew()
        return turn

    def _start(self, speech_start: int, turns: ServerVad) -> Turn:
        start = speech_start - round(turns.padding_s * SAMPLE_RATE)
        first = self.n_heard - len(self._between)
        self._between.drop(max(0, start - first))
        self.turn = Turn(self.config.hints, max(start, first), self._between)
        self._between = AudioBuffer()
        return self.turn

    def _end(self) -> Turn:
        assert self.turn is not None
        turn, self.turn = self.turn, None
        turn.end()
        return turn

    def _trim(self, turns: ServerVad) -> None:
        most = round((turns.padding_s + turns.min_silence_s + CONFIRMATION_S) * SAMPLE_RATE)
        self._between.drop(max(0, len(self._between) - most))

    def _listen_anew(self) -> None:
        self._between = AudioBuffer()
        turns = self.config.turns
        self._voice = (
            None if turns is None else StreamingVad(threshold=turns.threshold, min_silence_s=turns.min_silence_s)
        )
        self._voice_start = self.n_heard
