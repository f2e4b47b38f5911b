"""Cuts incoming audio into turns: with a streaming voice activity detector, or where the client commits.

Between turns only as much audio is kept as the next turn may start before its speech. Positions are samples from the
start of the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from choral.audio.constants import SAMPLE_RATE
from choral.server.api_errors import ApiError
from choral.server.realtime.audio_formats import Int16
from choral.server.realtime.session_config import ServerVad, SessionConfig
from choral.server.realtime.streaming_vad import SpeechEnd, SpeechStart, StreamingVad
from choral.server.realtime.turn import AudioBuffer, Turn

MIN_TURN_MS = 100
MAX_DETECTION_DELAY_S = 0.5  # from the start of speech to its detection, beyond the silence that ends a turn


@dataclass(frozen=True, eq=False)
class TurnStarted:
    turn: Turn


@dataclass(frozen=True, eq=False)
class TurnStopped:
    turn: Turn
    stop: int  # the sample after the turn's last


class TurnSegmenter:
    def __init__(self, config: SessionConfig) -> None:
        self.config = config
        self.n_samples = 0
        self.turn: Turn | None = None  # the one being spoken
        self._buffer = AudioBuffer()  # audio that belongs to no turn yet
        self._vad: StreamingVad | None = None
        self._vad_start = 0
        self._restart()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return self.turn is None and (self.config.turn_detection is not None or not len(self._buffer))

    @property
    def buffered_s(self) -> float:
        return self._buffer.duration_s + (self.turn.audio.duration_s if self.turn is not None else 0.0)

    def configure(self, config: SessionConfig) -> None:
        """Allowed between turns only; new turn detection drops the buffered audio."""
        is_same = config.turn_detection == self.config.turn_detection
        self.config = config
        if not is_same:
            self._restart()

    def add(self, samples: Int16) -> Iterator[TurnStarted | TurnStopped]:
        if self.config.turn_detection is None or self._vad is None:
            self._buffer.append(samples)
            self.n_samples += samples.size
            return
        for frame, change in self._vad.process(samples):
            (self._buffer if self.turn is None else self.turn).append(frame)
            self.n_samples += frame.size
            match change:
                case SpeechStart(sample):
                    yield TurnStarted(self._start_turn(self._vad_start + sample, self.config.turn_detection))
                case SpeechEnd():
                    yield TurnStopped(self._end_turn(), self.n_samples)
            self._trim(self.config.turn_detection)

    def commit(self) -> Turn:
        """End the turn being spoken; without turn detection, make one of the buffered audio."""
        if self.turn is not None and self._vad is not None:
            self.turn.append(self._vad.remainder)
            self.n_samples += self._vad.remainder.size
            turn = self._end_turn()
            self._restart()
            return turn
        buffered_ms = 0 if self.config.turn_detection else round(self._buffer.duration_s * 1000)
        if buffered_ms < MIN_TURN_MS:
            detected = "no speech was detected since the last turn"
            reason = detected if self.config.turn_detection else f"the buffer has {buffered_ms} ms of audio"
            raise ApiError(
                f"there is nothing to commit: {reason}, and a turn needs at least {MIN_TURN_MS} ms",
                code="input_audio_buffer_commit_empty",
            )
        turn = Turn(self.config.transcription, self.n_samples - len(self._buffer), self._buffer)
        turn.end()
        self._buffer = AudioBuffer()
        return turn

    def clear(self) -> Turn | None:
        """Drop the buffered audio, and return the turn that was being spoken, if any."""
        turn, self.turn = self.turn, None
        self._restart()
        return turn

    def _start_turn(self, speech_start: int, vad: ServerVad) -> Turn:
        start = speech_start - round(vad.padding_s * SAMPLE_RATE)
        buffer_start = self.n_samples - len(self._buffer)
        self._buffer.drop(max(0, start - buffer_start))
        self.turn = Turn(self.config.transcription, max(start, buffer_start), self._buffer)
        self._buffer = AudioBuffer()
        return self.turn

    def _end_turn(self) -> Turn:
        assert self.turn is not None
        turn, self.turn = self.turn, None
        turn.end()
        return turn

    def _trim(self, vad: ServerVad) -> None:
        max_samples = round((vad.padding_s + vad.min_silence_s + MAX_DETECTION_DELAY_S) * SAMPLE_RATE)
        self._buffer.drop(max(0, len(self._buffer) - max_samples))

    def _restart(self) -> None:
        self._buffer = AudioBuffer()
        vad = self.config.turn_detection
        self._vad = None if vad is None else StreamingVad(threshold=vad.threshold, min_silence_s=vad.min_silence_s)
        self._vad_start = self.n_samples
