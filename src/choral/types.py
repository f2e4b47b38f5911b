"""What goes in and what comes out: the options of a request and its transcript.

`TranscribeOptions` is written once and used by every front door: the command line makes its flags from these
fields and their help texts. All times are seconds from the start of the audio.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from choral.checks import check_fields
from choral.errors import UsageError

Task = Literal["transcribe", "translate"]
Mode = Literal["batched", "sequential"]
Priority = Literal["interactive", "batch"]  # batch work waits for interactive work, but never for ever
LoudnessKind = Literal["ebu", "rms"]
Loudness = Literal["off", "ebu", "rms"]

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def option(default: Any, text: str, *, metavar: str | None = None) -> Any:
    """A field of the options with the sentence that help and docs print for it."""
    return dataclasses.field(default=default, metadata={"help": text, "metavar": metavar})


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions:
    """How one request is transcribed. Wrong values raise `UsageError` at construction."""

    language: str | None = option(None, "language spoken, as a code or a name; detected when not given")
    task: Task = option("transcribe", "keep the language, or translate into English")
    mode: Mode = option(
        "sequential",
        "sequential: OpenAI's algorithm, each window prompted with the text before it; "
        "batched: cut at silences, all windows of a file at once",
    )
    vad: bool | None = option(None, "leave out what a voice detector calls silence (default: only in batched mode)")
    vad_threshold: float = option(0.5, "how sure the voice detector must be, 0 to 1")
    vad_min_silence: float = option(0.5, "shortest silence that ends a stretch of speech", metavar="SECONDS")
    vad_padding: float = option(0.2, "sound to keep on both sides of a stretch of speech", metavar="SECONDS")

    loudness: Loudness = option(
        "off", "bring the recording to a loudness first: ebu as EBU R128 measures it, rms by its mean power"
    )
    loudness_target: float | None = option(
        None, "the loudness wanted (default: -23 LUFS with ebu, -20 dB with rms)", metavar="DB"
    )

    word_timestamps: bool = option(False, "find the start and end of every word")
    prepend_punctuations: str = option("\"'“¿([{-", "punctuation that belongs to the next word")
    append_punctuations: str = option("\"'.。,，!！?？:：”)]}、", "punctuation that belongs to the word before")

    initial_prompt: str | None = option(None, "text that the first window is told came before it")
    carry_initial_prompt: bool = option(False, "tell every window the initial prompt, not only the first")
    hotwords: str | None = option(None, "words to expect, told to every window")
    prefix: str | None = option(
        None, "text that the first window goes on from, not repeated in the result; best with --no-timestamps"
    )
    condition_on_previous_text: bool = option(True, "tell each window the text before it (sequential mode)")
    prompt_reset_temperature: float = option(
        0.5, "forget the text before when a window needed a temperature above this"
    )

    temperature: float | tuple[float, ...] = option(
        TEMPERATURES, "temperatures to try in turn, separated by commas; 0 is greedy or beam search"
    )
    beam_size: int = option(1, "beams at temperature 0; 1 is greedy")
    best_of: int = option(5, "samples at temperatures above 0, the likeliest is kept")
    patience: float = option(1.0, "beam search ends with beam size times this many finished candidates")
    length_penalty: float | None = option(
        None, "rank candidates by this length penalty; by plain average when not given"
    )
    token_logprobs: bool = option(False, "keep the log-probability of every token, in verbose_json")
    seed: int = option(0, "seed for sampling: the same seed gives the same text")
    max_tokens: int | None = option(None, "most tokens a window may produce (default: 224)")

    suppress_tokens: tuple[int, ...] = option(
        (-1,), "token ids never to produce, separated by commas; -1 stands for most special characters"
    )
    suppress_blank: bool = option(True, "never start a window with a blank")
    timestamps: bool = option(True, "let the model predict the times of segments")
    max_initial_timestamp: float | None = option(
        1.0, "latest start of the first segment in a window", metavar="SECONDS"
    )

    compression_ratio_threshold: float | None = option(
        2.4, "text that compresses better than this is repetition: try the next temperature"
    )
    logprob_threshold: float | None = option(-1.0, "average log-probability below which the next temperature is tried")
    no_speech_threshold: float | None = option(
        0.6, "a window above this no-speech probability, and below the log-probability threshold, is silence"
    )
    clip_timestamps: tuple[float, ...] = option(
        (), "start,end,start,end,… of the parts to transcribe; the last may be left out", metavar="SECONDS"
    )
    hallucination_silence_threshold: float | None = option(
        None, "skip longer silences around improbable words (needs word timestamps)", metavar="SECONDS"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        _require_range("vad_threshold", self.vad_threshold, 0, 1)
        _require_range("vad_min_silence", self.vad_min_silence, 0, 60)
        _require_range("vad_padding", self.vad_padding, 0, 60)
        if self.loudness_target is not None:
            _require_range("loudness_target", self.loudness_target, -70, 0)
            if self.loudness == "off":
                raise UsageError("loudness_target has no effect without loudness: set that to ebu or rms")
        for temperature in self.temperatures:
            _require_range("temperature", temperature, 0, 10)
        if not self.temperatures:
            raise UsageError("temperature: give at least one number, for example 0")
        for name in ("beam_size", "best_of"):
            _require_count(name, getattr(self, name), 64)
        if self.max_tokens is not None:
            _require_count("max_tokens", self.max_tokens, 448)
        _require_range("patience", self.patience, 0.01, 100)
        if self.length_penalty is not None:
            _require_range("length_penalty", self.length_penalty, 0, 1)
        if self.max_initial_timestamp is not None:
            _require_range("max_initial_timestamp", self.max_initial_timestamp, 0, 30)
        if self.hallucination_silence_threshold is not None:
            _require_range("hallucination_silence_threshold", self.hallucination_silence_threshold, 0, 3600)
            if not self.word_timestamps:
                raise UsageError("hallucination_silence_threshold needs word_timestamps: switch them on too")
        _require_clips(self.clip_timestamps)

    @property
    def temperatures(self) -> tuple[float, ...]:
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)

    @classmethod
    def of(cls, **given: object) -> TranscribeOptions:
        """The options with these values; a name that does not exist is an error that lists those that do."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(f"unknown option {unknown[0]!r}; the options are {', '.join(sorted(known))}")
        return cls(**given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Word:
    text: str  # with the space before it, as the model wrote it
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class Token:
    """A token of text, in the bytes it stands for: some are a part of a letter."""

    text: bytes
    logprob: float


@dataclass(frozen=True)
class Segment:
    id: int
    seek: int  # start of the window it came from, in mel frames of 10 ms
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[Word, ...] | None = None  # None: not asked for
    token_logprobs: tuple[float, ...] | None = None  # of each of `tokens`; None: not asked for


@dataclass(frozen=True)
class Transcript:
    text: str
    segments: tuple[Segment, ...]
    language: str
    language_probability: float | None  # None: the language was given
    duration: float
    task: Task = "transcribe"
    warnings: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(word for segment in self.segments for word in segment.words or ())


@dataclass(frozen=True)
class SubtitleOptions:
    """How subtitles are laid out; all but the defaults need word timestamps."""

    highlight_words: bool = option(False, "underline each word as it is spoken (srt and vtt)")
    max_line_width: int | None = option(None, "most characters in a line before it is broken")
    max_line_count: int | None = option(None, "most lines in a subtitle (needs --max-line-width)")
    max_words_per_line: int | None = option(None, "most words in a subtitle (not with --max-line-width)")

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("max_line_width", "max_line_count", "max_words_per_line"):
            value = getattr(self, name)
            if value is not None:
                _require_count(name, value, 10_000)
        if self.max_line_count is not None and self.max_line_width is None:
            raise UsageError("max_line_count has no effect without max_line_width: give both")
        if self.max_words_per_line is not None and self.max_line_width is not None:
            raise UsageError("max_words_per_line has no effect with max_line_width: give one of them")

    @property
    def needs_words(self) -> bool:
        return self != SubtitleOptions()


def _require_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it must be a number from {low} to {high}")


def _require_count(name: str, value: int, high: int) -> None:
    if not 1 <= value <= high:
        raise UsageError(f"{name} is {value!r}; it must be a whole number from 1 to {high}")


def _require_clips(clips: tuple[float, ...]) -> None:
    if any(clip < 0 for clip in clips):
        raise UsageError("clip_timestamps must be seconds from 0 up, for example 0,30,60,90")
    if list(clips) != sorted(clips):
        raise UsageError("clip_timestamps must rise: start,end,start,end,…")
