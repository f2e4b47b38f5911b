"""Cuts incoming audio into turns: with a streaming voice activity detector, or where the client commits.

With a `TurnEndDetector`, a pause ends a turn that sounds complete; without one, silence of a fixed length does.
Between turns only as much audio is kept as the next turn may start before its speech. Without turn detection, all audio
up to a commit is a turn; its start is reported once speech is heard in it and it arrives about as fast as it is spoken.
Positions are samples from the start of the session.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from choral.audio.constants import SAMPLE_RATE
from choral.server.api_errors import ApiError
from choral.server.realtime.audio_formats import Int16
from choral.server.realtime.session_config import SessionConfig, TurnDetection
from choral.server.realtime.streaming_vad import SpeechEnd, SpeechPause, SpeechStart, StreamingVad
from choral.server.realtime.turn import AudioBuffer, Turn
from choral.server.realtime.turn_end import MAX_SAMPLES, PAUSE_S, TurnEndDetector

MIN_TURN_MS = 100
MAX_DETECTION_DELAY_S = 0.5  # from the start of speech to its detection, beyond the silence that ends a turn
PACE_INTERVAL_S, MAX_LIVE_PACE = 1.0, 2.0  # audio that arrives faster is a recording, and is transcribed as a file
MAX_LIVE_MESSAGE_S = 20.0
KEPT_SILENCE_S = 5.0  # before the speech of a turn that the client commits
DEFAULT_VAD = TurnDetection(type="server_vad")


@dataclass(frozen=True, eq=False)
class TurnStarted:
    turn: Turn


@dataclass(frozen=True, eq=False)
class TurnStopped:
    turn: Turn
    stop: int  # the sample after the turn's last


class ArrivalPace:
    """How fast audio arrives, measured over about a second."""

    def __init__(self) -> None:
        self._since_s, self._n_samples = time.monotonic(), 0
        self.is_live = False

    def add(self, n_samples: int) -> None:
        self._n_samples += n_samples
        elapsed_s = time.monotonic() - self._since_s
        if elapsed_s >= PACE_INTERVAL_S:
            self.is_live = self._n_samples <= MAX_LIVE_PACE * elapsed_s * SAMPLE_RATE
            self._since_s, self._n_samples = time.monotonic(), 0


class TurnSegmenter:
    def __init__(self, config: SessionConfig, turn_end: TurnEndDetector | None = None) -> None:
        self.config, self.turn_end = config, turn_end
        self.n_samples = 0
        self.turn: Turn | None = None  # the one being spoken
        self._buffer = AudioBuffer()  # audio that belongs to no turn yet
        self._vad_start = 0
        self._pace = ArrivalPace()
        self._has_speech = self._is_reported = False  # of a turn that the client commits
        self._restart()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return self.turn is None

    @property
    def can_commit(self) -> bool:
        return self.turn is not None and (
            self.config.turn_detection is not None or self.turn.duration_s * 1000 >= MIN_TURN_MS
        )

    @property
    def buffered_s(self) -> float:
        return self._buffer.duration_s + (self.turn.audio.duration_s if self.turn is not None else 0.0)

    def configure(self, config: SessionConfig, turn_end: TurnEndDetector | None = None) -> None:
        """New turn detection drops the buffered audio, and is allowed between turns only."""
        is_same = config.turn_detection == self.config.turn_detection and turn_end is self.turn_end
        self.config, self.turn_end = config, turn_end
        if self.turn is not None and config.turn_detection is None:
            self.turn.transcription = config.transcription
        if not is_same:
            self._restart()

    def add(self, samples: Int16) -> Iterator[TurnStarted | TurnStopped]:
        if self.config.turn_detection is None:
            yield from self._add_until_commit(samples)
            return
        for frame, change in self._vad.process(samples):
            (self._buffer if self.turn is None else self.turn).append(frame)
            self.n_samples += frame.size
            match change:
                case SpeechStart(sample):
                    yield TurnStarted(self._start_turn(self._vad_start + sample, self.config.turn_detection))
                case SpeechPause() if self._is_complete():
                    self._vad.end_speech()
                    yield TurnStopped(self._end_turn(), self.n_samples)
                case SpeechEnd():
                    yield TurnStopped(self._end_turn(), self.n_samples)
            self._trim(self.config.turn_detection)

    def _is_complete(self) -> bool:
        assert self.turn is not None
        assert self.turn_end is not None
        audio = self.turn.audio
        return self.turn_end.is_complete(audio.copy(max(0, len(audio) - MAX_SAMPLES)))

    def _add_until_commit(self, samples: Int16) -> Iterator[TurnStarted]:
        if not samples.size:
            return
        if self.turn is None:
            self.turn = Turn.begin(self.config, self.n_samples, AudioBuffer())
            self._pace = ArrivalPace()
        self.turn.append(samples)
        self.n_samples += samples.size
        self._pace.add(samples.size)
        if samples.size > MAX_LIVE_MESSAGE_S * SAMPLE_RATE:
            self._has_speech = True  # not live: it is not searched, because that takes memory
        if not self._has_speech:
            self._has_speech = any(isinstance(change, SpeechStart) for _, change in self._vad.process(samples))
        if self._has_speech and self._pace.is_live and not self._is_reported:
            self._is_reported = True
            yield TurnStarted(self.turn)

    def drop_silence(self, more_s: float, max_s: float) -> None:
        """Make room for audio in a turn that the client commits: what precedes its speech is not needed."""
        if self.turn is None or self.config.turn_detection is not None or self._has_speech:
            return
        if self.buffered_s + more_s > max_s:
            kept = round(KEPT_SILENCE_S * SAMPLE_RATE)
            self.turn.audio.drop(max(0, len(self.turn.audio) - kept))

    def commit(self) -> Turn:
        """End the turn being spoken."""
        if self.turn is None or not self.can_commit:
            buffered_ms = 0 if self.turn is None else round(self.turn.duration_s * 1000)
            detected = "no speech was detected since the last turn"
            reason = detected if self.config.turn_detection else f"the buffer has {buffered_ms} ms of audio"
            raise ApiError(
                f"there is nothing to commit: {reason}, and a turn needs at least {MIN_TURN_MS} ms",
                code="input_audio_buffer_commit_empty",
            )
        if self.config.turn_detection is not None:
            self.turn.append(self._vad.remainder)
            self.n_samples += self._vad.remainder.size
        turn = self._end_turn()
        self._restart()
        return turn

    def clear(self) -> Turn | None:
        """Drop the buffered audio, and return the turn that was being spoken, if any."""
        turn, self.turn = self.turn, None
        self._restart()
        return turn

    def _start_turn(self, speech_start: int, vad: TurnDetection) -> Turn:
        start = speech_start - round(vad.padding_s * SAMPLE_RATE)
        buffer_start = self.n_samples - len(self._buffer)
        self._buffer.drop(max(0, start - buffer_start))
        self.turn = Turn.begin(self.config, max(start, buffer_start), self._buffer)
        self._buffer = AudioBuffer()
        return self.turn

    def _end_turn(self) -> Turn:
        assert self.turn is not None
        turn, self.turn = self.turn, None
        turn.end()
        return turn

    def _trim(self, vad: TurnDetection) -> None:
        max_samples = round((vad.padding_s + self._min_silence_s + MAX_DETECTION_DELAY_S) * SAMPLE_RATE)
        self._buffer.drop(max(0, len(self._buffer) - max_samples))

    def _restart(self) -> None:
        self._buffer = AudioBuffer()
        vad = self.config.turn_detection or DEFAULT_VAD
        self._min_silence_s = vad.min_silence_s if self.turn_end is None else vad.max_silence_s
        pause_s = None if self.turn_end is None else PAUSE_S
        self._vad = StreamingVad(threshold=vad.threshold, min_silence_s=self._min_silence_s, pause_s=pause_s)
        self._has_speech = self._is_reported = False
        self._vad_start = self.n_samples
