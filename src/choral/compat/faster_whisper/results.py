"""What faster-whisper's `transcribe` returns: segments, words, and the information about both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from choral import transcript


@dataclass
class Word:
    start: float
    end: float
    word: str
    probability: float

    @classmethod
    def of(cls, word: transcript.Word) -> Word:
        return cls(word.start, word.end, word.text, word.probability)

    def _asdict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Segment:
    id: int  # from 1
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None
    temperature: float | None

    @classmethod
    def of(cls, segment: transcript.Segment) -> Segment:
        return cls(
            id=segment.id + 1,
            seek=segment.seek,
            start=segment.start,
            end=segment.end,
            text=segment.text,
            tokens=list(segment.tokens),
            avg_logprob=segment.avg_logprob,
            compression_ratio=segment.compression_ratio,
            no_speech_prob=segment.no_speech_prob,
            words=None if segment.words is None else [Word.of(word) for word in segment.words],
            temperature=segment.temperature,
        )

    def _asdict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class VadOptions:
    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_duration_ms: int = 0
    max_speech_duration_s: float = float("inf")
    min_silence_duration_ms: int = 2000
    speech_pad_ms: int = 400


@dataclass
class TranscriptionOptions:
    beam_size: int
    best_of: int
    patience: float
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    log_prob_threshold: float | None
    no_speech_threshold: float | None
    compression_ratio_threshold: float | None
    condition_on_previous_text: bool
    prompt_reset_on_temperature: float
    temperatures: list[float]
    initial_prompt: str | Iterable[int] | None
    prefix: str | None
    suppress_blank: bool
    suppress_tokens: tuple[int, ...] | None
    without_timestamps: bool
    max_initial_timestamp: float
    word_timestamps: bool
    prepend_punctuations: str
    append_punctuations: str
    multilingual: bool
    max_new_tokens: int | None
    clip_timestamps: str | list[float] | list[dict[str, float]] | None
    hallucination_silence_threshold: float | None
    hotwords: str | None


@dataclass
class TranscriptionInfo:
    language: str
    language_probability: float
    duration: float
    duration_after_vad: float
    all_language_probs: list[tuple[str, float]] | None  # most probable first; None: the language was not detected
    transcription_options: TranscriptionOptions
    vad_options: VadOptions | None  # None: without voice detection
