"""Options of a request, and of the subtitles made from its transcript.

Every entry point uses `TranscribeOptions`: the command line derives its flags from these fields, and the server its
form fields. All times are in seconds from the start of the audio.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from choral.diarization import EMBEDDING_SIZE, check_speaker_names
from choral.errors import UsageError
from choral.term_lists import MAX_LIST_CHARACTERS, read_hotwords, read_replacements
from choral.validation import check_fields, option

Task = Literal["transcribe", "translate"]
Mode = Literal["auto", "batched", "sequential"]
Priority = Literal["interactive", "batch"]  # batch work yields to interactive work but is never starved
LoudnessKind = Literal["ebu", "rms"]
Loudness = Literal["off", "ebu", "rms"]
Channels = Literal["mix", "split"]

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


# Bounds on the length of every text and list, because time, memory and stored jobs grow with them.
MAX_NAME_CHARACTERS = 64
MAX_MARKS = 256
MAX_TEXT_CHARACTERS = 16_384  # of a prompt; the model uses the last 224 tokens, about 900 letters of English
MAX_TEMPERATURES = 16
MAX_SUPPRESSED_TOKENS = 4_096  # more than all tokens with digits, which some suppress
MAX_CLIP_TIMES = 10_000
MAX_LANGUAGES = 100
MAX_CLIP_S = 365 * 86_400.0
MAX_SPEAKERS = 100


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions:
    """How one request is transcribed. Invalid values raise `UsageError` on construction."""

    language: str | None = option(
        None, "spoken language, as a code or a name; detected when not given, or auto", max_length=MAX_NAME_CHARACTERS
    )
    languages: tuple[str, ...] = option(
        (),
        "languages that may be detected, separated by commas (default: all)",
        metavar="LANGUAGE,…",
        max_length=MAX_LANGUAGES,
    )
    multilingual: bool = option(
        False, "detect the language of every turn and transcribe each in its own; costs an encoder pass per turn"
    )
    task: Task = option("transcribe", "transcribe in the spoken language, or translate to English")
    mode: Mode = option(
        "auto",
        "sequential: OpenAI's algorithm, each window prompted with the previous text; "
        "batched: cut at silences and decode all windows of a file together; "
        "auto: batched for audio longer than 30 s, unless the voice activity detector is disabled",
    )
    vad: bool | None = option(None, "skip silence found by the voice activity detector (default: only in batched mode)")
    vad_threshold: float = option(0.5, "speech probability above which audio counts as speech", within=(0, 1))
    vad_min_silence: float = option(
        0.5, "shortest silence that ends a span of speech", metavar="SECONDS", within=(0, 60)
    )
    vad_padding: float = option(
        0.2, "audio to keep on both sides of a span of speech", metavar="SECONDS", within=(0, 60)
    )
    retry_missed_speech: bool | None = option(None, "decode speech without text again (default: only in batched mode)")

    channels: Channels = option(
        "mix",
        "mix: all channels as one; split: each channel by itself, for speakers that were recorded apart "
        "(telephone calls, a microphone each)",
    )
    diarize: bool = option(False, "tell speakers apart: segments end where the speaker changes")
    speakers: int | tuple[int, ...] | None = option(
        None,
        "number of speakers, or its bounds as in 2-5; found when not given",
        metavar="N|N-N",
        within=(1, MAX_SPEAKERS),
        max_length=2,
        separator="-",
    )
    voices: dict[str, tuple[float, ...]] | None = option(
        None,
        "folder with a clip of each voice that is known (Anna.wav, or Anna-1.wav and Anna-2.wav, or a folder Anna): "
        "these speakers get their names",
        metavar="FOLDER",
        max_length=MAX_SPEAKERS,
    )
    speaker_names: tuple[str, ...] = option(
        (),
        "names of the speakers in the order in which they first speak, separated by commas",
        metavar="NAME,…",
        max_length=MAX_SPEAKERS,
    )
    loudness: Loudness = option(
        "off", "normalise loudness first: ebu measures integrated loudness (EBU R128), rms the mean power"
    )
    loudness_target: float | None = option(
        None, "target loudness (default: -23 LUFS with ebu, -20 dB with rms)", metavar="DB", within=(-70, 0)
    )

    word_timestamps: bool = option(False, "add the start and end of every word")
    prepend_punctuations: str = option("\"'“¿([{-", "punctuation that belongs to the next word", max_length=MAX_MARKS)
    append_punctuations: str = option(
        "\"'.。,，!！?？:：”)]}、", "punctuation that belongs to the previous word", max_length=MAX_MARKS
    )

    initial_prompt: str | None = option(
        None, "text to prompt the first window with, as if it preceded the audio", max_length=MAX_TEXT_CHARACTERS
    )
    carry_initial_prompt: bool = option(False, "prompt every window with the initial prompt, not only the first")
    hotwords: str | tuple[str, ...] | None = option(
        None,
        "terms to expect, separated by commas or new lines, or a JSON list: decoding prefers them, "
        "and a list that fits is added to the prompt of every window",
        max_length=MAX_LIST_CHARACTERS,
    )
    hotword_boost: float = option(
        4.0, "how much hotwords are preferred; 0: they are only added to the prompt", within=(0, 20)
    )
    replacements: str | dict[str, str] | None = option(
        None,
        "terms to replace in the text: wrong=right, separated by commas or new lines, or a JSON object; "
        "whole words, in upper or lower case",
        max_length=MAX_LIST_CHARACTERS,
    )
    prefix: str | None = option(
        None,
        "text that the first window continues, not repeated in the result; the window is then one segment",
        max_length=MAX_TEXT_CHARACTERS,
    )
    condition_on_previous_text: bool = option(True, "prompt each window with the previous text (sequential mode)")
    prompt_reset_temperature: float = option(
        0.5, "drop the previous text from the prompt after a window that needed a temperature above this"
    )

    temperature: float | tuple[float, ...] = option(
        TEMPERATURES,
        "temperatures to try in turn, separated by commas; 0 is greedy or beam search",
        within=(0, 10),
        max_length=MAX_TEMPERATURES,
    )
    beam_size: int = option(1, "beams at temperature 0; 1 is greedy", within=(1, 64))
    best_of: int = option(5, "samples at temperatures above 0; the most probable is kept", within=(1, 64))
    patience: float = option(1.0, "beam search ends after beam size × patience finished candidates", within=(0.01, 100))
    length_penalty: float | None = option(
        None, "length penalty for ranking candidates; simple length average when not given", within=(0, 1)
    )
    token_logprobs: bool = option(False, "add the log-probability of every token to verbose_json")
    seed: int = option(0, "sampling seed; the same seed gives the same text", within=(-(2**63), 2**63 - 1))
    max_tokens: int | None = option(None, "maximum number of tokens per window (default: 224)", within=(1, 448))

    suppress_tokens: tuple[int, ...] = option(
        (-1,),
        "token ids that are never produced, separated by commas; -1 stands for most special characters",
        within=(-1, 10**6),
        max_length=MAX_SUPPRESSED_TOKENS,
    )
    suppress_blank: bool = option(True, "never start a window with a blank token")
    timestamps: bool = option(True, "let the model predict segment timestamps")
    max_initial_timestamp: float | None = option(
        1.0, "latest start of the first segment in a window", metavar="SECONDS", within=(0, 30)
    )

    compression_ratio_threshold: float | None = option(
        2.4, "compression ratio above which the text counts as repetitive and the next temperature is tried"
    )
    logprob_threshold: float | None = option(-1.0, "average log-probability below which the next temperature is tried")
    no_speech_threshold: float | None = option(
        0.6, "no-speech probability above which a window below the log-probability threshold counts as silence"
    )
    clip_timestamps: tuple[float, ...] = option(
        (),
        "start,end,start,end,… of the parts to transcribe; the last end may be omitted",
        metavar="SECONDS",
        within=(0, MAX_CLIP_S),
        max_length=MAX_CLIP_TIMES,
    )
    hallucination_silence_threshold: float | None = option(
        None,
        "skip silences longer than this around improbable words (needs word timestamps)",
        metavar="SECONDS",
        within=(0, 3600),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.language is not None and self.language.strip().lower() == "auto":
            object.__setattr__(self, "language", None)
        _ = self.hotword_terms, self.replacement_terms  # raise for lists that cannot be read
        if self.retry_missed_speech and self.mode == "batched" and self.vad is False:
            raise UsageError("retry_missed_speech needs the voice detector in batched mode: omit vad or enable it")
        if self.loudness_target is not None and self.loudness == "off":
            raise UsageError("loudness_target has no effect without loudness: set loudness to ebu or rms")
        if (longest := max(map(len, self.languages), default=0)) > MAX_NAME_CHARACTERS:
            raise UsageError(
                f"languages has a name of {longest:,} characters; it must have at most {MAX_NAME_CHARACTERS}"
            )
        if self.language is not None and (self.multilingual or self.languages):
            name = "multilingual" if self.multilingual else "languages"
            raise UsageError(f"{name} has no effect where the language is given: omit one of them")
        self._check_speakers()
        if not self.temperatures:
            raise UsageError("temperature: give at least one number, for example 0")
        if self.hallucination_silence_threshold is not None and not self.word_timestamps:
            raise UsageError("hallucination_silence_threshold needs word_timestamps: enable word_timestamps too")
        if list(self.clip_timestamps) != sorted(self.clip_timestamps):
            raise UsageError("clip_timestamps must be in ascending order: start,end,start,end,…")

    def _check_speakers(self) -> None:
        for name in ("speakers", "voices", "speaker_names"):
            if getattr(self, name) not in (None, ()) and not self.diarize:
                raise UsageError(f"{name} has no effect without diarize: enable diarize too")
        if isinstance(self.speakers, tuple) and (not self.speakers or self.speakers[0] > self.speakers[-1]):
            raise UsageError("speakers must be a number, or the lowest and the highest, for example 2-5")
        if self.diarize and self.channels == "split":
            raise UsageError("channels=split keeps speakers apart by itself: leave out diarize, or mix the channels")
        if self.voices is not None and self.speaker_names:
            raise UsageError("voices and speaker_names both name the speakers: give one of them")
        check_speaker_names("voices", [*(self.voices or ())])
        check_speaker_names("speaker_names", self.speaker_names)
        if any(len(voice) != EMBEDDING_SIZE or not any(voice) for voice in (self.voices or {}).values()):
            raise UsageError(f"voices must have an embedding of {EMBEDDING_SIZE} numbers for each name")

    @property
    def temperatures(self) -> tuple[float, ...]:
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)

    @cached_property
    def hotword_terms(self) -> tuple[str, ...]:
        return read_hotwords(self.hotwords)

    @cached_property
    def replacement_terms(self) -> dict[str, str]:
        return read_replacements(self.replacements)

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, for `of`; as JSON, tuples become lists, which it accepts."""
        values = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        return {field.name: value for field, value in values if value != field.default}

    @classmethod
    def of(cls, **values: object) -> TranscribeOptions:
        """Build options from keyword values; an unknown name raises `UsageError` that lists the known ones."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise UsageError(f"unknown option {unknown[0]!r}; the options are {', '.join(sorted(known))}")
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SubtitleOptions:
    """Subtitle layout; any value but the defaults needs word timestamps."""

    highlight_words: bool = option(False, "underline each word as it is spoken (srt and vtt)")
    max_line_width: int | None = option(None, "maximum number of characters per line", within=(1, 10_000))
    max_line_count: int | None = option(
        None, "maximum number of lines per subtitle (needs --max-line-width)", within=(1, 10_000)
    )
    max_words_per_line: int | None = option(
        None, "maximum number of words per subtitle (not with --max-line-width)", within=(1, 10_000)
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_line_count is not None and self.max_line_width is None:
            raise UsageError("max_line_count has no effect without max_line_width: give both")
        if self.max_words_per_line is not None and self.max_line_width is not None:
            raise UsageError("max_words_per_line has no effect with max_line_width: give one of them")

    @property
    def needs_words(self) -> bool:
        return self != SubtitleOptions()
