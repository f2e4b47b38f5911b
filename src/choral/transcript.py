"""What a transcription returns: `Transcript`, with its segments, words and tokens. All times are in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from choral.diarization import Speaker, SpeakerTurn
from choral.options import Task


@dataclass(frozen=True)
class Word:
    """One word of the transcript; times in seconds."""

    text: str  # includes the leading space, as the model wrote it
    start: float
    end: float
    probability: float
    channel: int | None = None  # that of its segment
    speaker: str | None = None  # None: not requested, or not known

    @property
    def is_timed(self) -> bool:
        """False for a word of an aligned text that is not in the audio: its start and end are NaN."""
        return not math.isnan(self.start)


@dataclass(frozen=True)
class Token:
    """A text token as bytes, because a token may be part of a multi-byte character."""

    text: bytes
    logprob: float


@dataclass(frozen=True)
class Segment:
    """One segment of the transcript, with the scores of the window it came from."""

    id: int
    seek: int  # start of its window, in mel frames of 10 ms
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[Word, ...] | None = None  # None: not requested
    token_logprobs: tuple[float, ...] | None = None  # one per entry of `tokens`; None: not requested
    channel: int | None = None  # counted from 1; None: all channels as one
    language: str | None = None  # with `multilingual`; None: that of the transcript
    speaker: str | None = None  # None: not requested, or not known


@dataclass(frozen=True)
class Transcript:
    """The result of a request."""

    text: str
    segments: tuple[Segment, ...]
    language: str  # with `multilingual`, the one that is spoken most
    language_probability: float | None  # None: the language was given, or detected for each turn
    duration: float
    task: Task = "transcribe"
    warnings: tuple[str, ...] = ()
    speakers: tuple[Speaker, ...] = ()  # with diarize, by their first turn
    turns: tuple[SpeakerTurn, ...] = ()  # with diarize, by start

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(word for segment in self.segments for word in segment.words or ())
