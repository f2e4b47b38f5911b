"""A turn: a stretch of speech between two longer pauses, with the audio still needed and the text confirmed so far.

Text is only ever appended. A long turn is transcribed in pieces: once a piece is cut, its audio is dropped and its
tokens become the prompt of the next piece, so a turn has no maximum length although a window has one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.longform.words import SENTENCE_ENDS, WordTiming
from choral.server.realtime.audio_formats import Int16
from choral.server.realtime.server_events import new_id
from choral.server.realtime.session_config import SessionConfig, TranscriptionConfig
from choral.server.realtime.turn_logprobs import TurnLogprobs
from choral.server.responses import TextAccumulator

INITIAL_CAPACITY = SAMPLE_RATE // 10  # many short turns may wait
MAX_HISTORY_TOKENS = 448  # more than the prompt of any model

Tokens = tuple[int, ...]


class AudioBuffer:
    """16 kHz samples, appended at the end and dropped from the start; the array has spare capacity at its end."""

    def __init__(self, samples: Int16 | None = None) -> None:
        self._array = np.zeros(INITIAL_CAPACITY, np.int16)
        self._start = self._stop = 0
        if samples is not None:
            self.append(samples)

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def duration_s(self) -> float:
        return len(self) / SAMPLE_RATE

    def append(self, samples: Int16) -> None:
        if self._stop + samples.size > self._array.size:
            self._grow(samples.size)
        self._array[self._stop : self._stop + samples.size] = samples
        self._stop += samples.size

    def drop(self, n_samples: int) -> None:
        """Remove samples from the start."""
        self._start = min(self._start + n_samples, self._stop)

    def copy(self, start: int = 0, stop: int | None = None) -> Int16:
        """Positions count from the first sample that is not dropped."""
        array_stop = self._stop if stop is None else min(self._start + stop, self._stop)
        return self._array[self._start + start : array_stop].copy()

    def _grow(self, n_more: int) -> None:
        samples = self.copy()
        self._array = np.zeros(max(INITIAL_CAPACITY, 2 * (samples.size + n_more)), np.int16)
        self._array[: samples.size] = samples
        self._start, self._stop = 0, samples.size


@dataclass(eq=False)
class Turn:
    transcription: TranscriptionConfig
    start: int  # the first sample, counted from the start of the session
    audio: AudioBuffer  # of the current piece
    id: str = field(default_factory=lambda: new_id("item"))
    is_ended: bool = False
    ended_s: float = 0.0  # the monotonic time at which its last sample arrived
    n_samples: int = 0  # of all pieces
    n_transcribed: int = 0  # of them, covered by the newest hypothesis
    history: Tokens = ()  # the last text of earlier pieces
    confirmed: Tokens = ()  # the text of this piece that was sent
    unconfirmed: Tokens = ()  # the newest hypothesis after `confirmed`, not sent
    unconfirmed_logprobs: tuple[float, ...] = ()  # of its tokens, if they are asked for
    language: str | None = None  # of `unconfirmed`, and of the turn once it has text
    text: TextAccumulator = field(default_factory=TextAccumulator)
    logprobs: TurnLogprobs | None = None  # None: not asked for

    @classmethod
    def begin(cls, config: SessionConfig, start: int, audio: AudioBuffer, item_id: str | None = None) -> Turn:
        logprobs = TurnLogprobs() if config.wants_logprobs else None
        return cls(config.transcription, start, audio, id=item_id or new_id("item"), logprobs=logprobs)

    def __post_init__(self) -> None:
        self.n_samples = len(self.audio)

    def append(self, samples: Int16) -> None:
        self.audio.append(samples)
        self.n_samples += samples.size

    def end(self) -> None:
        self.is_ended, self.ended_s = True, time.monotonic()

    @property
    def duration_s(self) -> float:
        return self.n_samples / SAMPLE_RATE

    @property
    def untranscribed_s(self) -> float:
        """Audio that arrived since the newest hypothesis."""
        return (self.n_samples - self.n_transcribed) / SAMPLE_RATE

    @property
    def requested_fields(self) -> dict[str, Any]:
        """Of the event with its complete text: `languages` and `logprobs`, if they are asked for."""
        fields: dict[str, Any] = {}
        if self.transcription.has_languages:
            fields["languages"] = [{"code": self.language}] if self.language and self.text.text else []
        if self.logprobs is not None:
            fields["logprobs"] = self.logprobs.all_fields
        return fields

    def confirm(self, tokens: Tokens) -> None:
        """Move `tokens`, the first of the hypothesis, to the confirmed text."""
        self.confirmed += tokens
        self.unconfirmed = self.unconfirmed[len(tokens) :]
        self.unconfirmed_logprobs = self.unconfirmed_logprobs[len(tokens) :]

    def cut(self, n_tokens: int, n_samples: int) -> None:
        """Start a new piece after the first tokens and samples of this one."""
        self.history = (self.history + self.confirmed[:n_tokens])[-MAX_HISTORY_TOKENS:]
        self.confirmed = self.confirmed[n_tokens:]
        self.audio.drop(n_samples)


@dataclass(frozen=True)
class TurnCut:
    n_tokens: int  # before it
    at_s: float


def choose_cut(words: Sequence[WordTiming], n_confirmed: int, min_s: float) -> TurnCut | None:
    """Where to cut a piece, from `min_s` on: after its last complete sentence if there is one, else after a word.

    `words` are the timed words of the piece; at most `n_confirmed` of their tokens may lie before the cut.
    """
    word_cuts: list[TurnCut] = []
    sentence_cuts: list[TurnCut] = []
    n_tokens = 0
    for index, word in enumerate(words):
        n_tokens += word.n_tokens
        if n_tokens > n_confirmed:
            break
        if word.end < min_s:
            continue
        is_sentence_end = word.text.strip() in SENTENCE_ENDS
        # The pause after a sentence is timed as part of its punctuation mark: cut in the middle of it.
        at_s = (word.start + word.end) / 2 if is_sentence_end else word.end
        word_cuts.append(TurnCut(n_tokens, at_s))
        if is_sentence_end and index + 1 < len(words):
            sentence_cuts.append(word_cuts[-1])
    cuts = sentence_cuts or word_cuts
    return cuts[-1] if cuts else None
