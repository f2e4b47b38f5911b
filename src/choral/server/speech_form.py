"""The form of a transcription or translation request: OpenAI's fields, and Choral's own beside them.

A field of Choral's own that would have no effect together with the others is refused, like an invalid one. Unknown
fields, and OpenAI's that OpenAI ignores, are refused or named in a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from choral.options import Channels, Loudness, Mode, Priority, Task, TranscribeOptions
from choral.server.api_errors import ApiError
from choral.server.decoding_fields import DecodingFields
from choral.server.forms import (
    SPEAKERS_SCHEMA,
    FormModel,
    HttpUrl,
    Languages,
    SpeakerNames,
    Speakers,
    SpokenLanguage,
    form_values,
    option_field,
    pick_audio,
    single_value,
    to_options,
    validate,
    validate_json,
)
from choral.server.known_speakers import NAMES, REFERENCES, names_field, reference_clips, references_field
from choral.server.request_warnings import unknown_fields_warning
from choral.server.settings import UnknownFields
from choral.server.upload import Form
from choral.serving.input_sources import ServiceAudio
from choral.speakers.reference_clips import ReferenceClip
from choral.term_lists import MAX_LIST_CHARACTERS

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]
Granularity = Literal["segment", "word"]
MAX_PROMPT_CHARACTERS = 4096  # the model uses the last 224 tokens, about 900 letters of English
MAX_VAD_MS = 60_000
MAX_KEPT_FORMS, MAX_KEPT_CHARACTERS = 64, 512  # forms whose fields need not be checked again
CHUNKING = '"auto" or an object whose type is "server_vad"'
UNSUPPORTED = "unsupported_value"
LISTS = ("timestamp_granularities", "include", "languages", "keywords", "temperature", NAMES, REFERENCES)
LANGUAGES_MODEL = "gpt-transcribe"
STREAMED_FORMATS = ("json", "text", "diarized_json")  # the others are ignored
Text = Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS)]
TermList = Annotated[str, Field(max_length=MAX_LIST_CHARACTERS)]


class VadChunking(FormModel):
    """OpenAI's `chunking_strategy` object: settings of the voice activity detector in batched mode."""

    type: Literal["server_vad"] = Field(description=f"chunking_strategy must be {CHUNKING}")
    threshold: float | None = Field(None, ge=0, le=1)
    silence_duration_ms: float | None = Field(None, ge=0, le=MAX_VAD_MS)
    prefix_padding_ms: float | None = Field(None, ge=0, le=MAX_VAD_MS)  # kept on both sides of speech

    def options(self) -> dict[str, Any]:
        options = {
            "vad_threshold": self.threshold,
            "vad_min_silence": None if self.silence_duration_ms is None else self.silence_duration_ms / 1000,
            "vad_padding": None if self.prefix_padding_ms is None else self.prefix_padding_ms / 1000,
        }
        return {"mode": "batched", "vad": True} | {name: value for name, value in options.items() if value is not None}


def _read_chunking(value: Any) -> Any:
    """`auto`, or a `VadChunking` as JSON text or as a field for each of its settings."""
    if value == "auto":
        value = {"type": "server_vad"}
    if not isinstance(value, str):
        return validate(VadChunking, value, parent="chunking_strategy")
    if len(value) > MAX_PROMPT_CHARACTERS:
        text = f"chunking_strategy has {len(value):,} characters: at most {MAX_PROMPT_CHARACTERS:,} are accepted"
        raise _conflict("chunking_strategy", text)
    if not value.lstrip().startswith("{"):
        raise _conflict("chunking_strategy", f"chunking_strategy must be {CHUNKING}")
    return validate_json(VadChunking, value, parent="chunking_strategy")


ChunkingStrategy = Annotated[VadChunking, BeforeValidator(_read_chunking), WithJsonSchema({"type": "string"})]


class SpeechForm(DecodingFields):
    model: Text = Field(min_length=1, description="a name from GET /v1/models")
    language: SpokenLanguage = Field(None, description="code or English name; detected when not given")
    languages: Languages = Field((), alias="languages[]", description="languages that may be detected")
    multilingual: bool | None = option_field("multilingual")
    prompt: Text | None = Field(None, description="text that preceded the audio; the model uses its last 224 tokens")
    response_format: ResponseFormat = "json"
    timestamp_granularities: list[Granularity] = Field(
        [], alias="timestamp_granularities[]", description="word needs response_format verbose_json"
    )
    include: list[Literal["logprobs"]] = Field(
        [], alias="include[]", description="log-probability of every text token; needs response_format json"
    )
    stream: bool = Field(
        False, description="server-sent events with text as it becomes final; needs json, text or diarized_json"
    )
    chunking_strategy: ChunkingStrategy | None = Field(
        None, description='auto, or JSON: {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 500}'
    )
    url: Annotated[HttpUrl, Field(max_length=MAX_PROMPT_CHARACTERS)] | None = Field(
        None, description="URL of the audio, instead of `file`"
    )
    hotwords: TermList | None = option_field("hotwords")
    hotword_boost: float | None = option_field("hotword_boost")
    replacements: TermList | None = option_field("replacements")
    mode: Mode | None = option_field("mode")
    vad: bool | None = option_field("vad")
    retry_missed_speech: bool | None = option_field("retry_missed_speech")
    word_timestamps: bool = Field(False, description="words in verbose_json; subtitles cut at words")
    loudness: Loudness | None = option_field("loudness")
    channels: Channels | None = option_field("channels")
    diarize: bool | None = option_field("diarize")
    speakers: Annotated[Speakers, WithJsonSchema(SPEAKERS_SCHEMA)] | None = option_field("speakers")
    speaker_names: SpeakerNames | None = option_field("speaker_names")
    known_speaker_names: list[str] = names_field()
    known_speaker_references: list[str] = references_field()
    priority: Priority = Field("interactive", description="batch requests yield to interactive ones")

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        name = self.response_format
        if "word" in self.timestamp_granularities and name != "verbose_json":
            text = f"timestamp_granularities[]=word needs response_format verbose_json, and it is {name}"
            raise _conflict("timestamp_granularities", text)
        if self.include and name != "json":
            raise _conflict("include", f"include[]=logprobs needs response_format json, and it is {name}", UNSUPPORTED)
        if self.word_timestamps and name in ("json", "text", "diarized_json"):
            text = f"word_timestamps has no effect on {name}: choose verbose_json, srt or vtt"
            raise _conflict("word_timestamps", text)
        if self.chunking_strategy is not None and (self.mode == "sequential" or False in (self.vad, self.vad_filter)):
            option = "mode sequential" if self.mode == "sequential" else "vad false"
            text = f"chunking_strategy cuts at silences, which {option} disables: omit one of them"
            raise _conflict("chunking_strategy", text)
        if (self.n or 1) > 1 and not self.use_beam_search:
            raise _conflict("n", "n is the number of beams, and a request has one text: add use_beam_search=true")
        for mine, theirs in (("vad", "vad_filter"), ("hotwords", "keywords")):
            if getattr(self, mine) is not None and getattr(self, theirs) not in (None, []):
                raise _conflict(theirs, f"{theirs} is another name of {mine}: omit one of them")
        return self

    @model_validator(mode="after")
    def _check_speakers(self) -> Self:
        if self.diarize and self.response_format == "json":
            text = "diarize has no effect on json: choose diarized_json, verbose_json, srt, vtt or text"
            raise _conflict("diarize", text)
        if self.diarize is False and self.response_format == "diarized_json":
            raise _conflict("diarize", "diarized_json names the speakers: omit diarize, or choose verbose_json")
        if self.references and not (self.diarize or self.response_format == "diarized_json"):
            raise _conflict(NAMES, f"{NAMES} have no effect here: choose diarized_json, or add diarize=true")
        if self.references and self.speaker_names:
            raise _conflict("speaker_names", f"speaker_names and {NAMES} both name the speakers: send one of them")
        return self

    @property
    def references(self) -> tuple[ReferenceClip, ...]:
        return reference_clips(self.known_speaker_names, self.known_speaker_references)

    @property
    def speaker_labels(self) -> tuple[str, ...]:
        """The names that speakers may have in the response, instead of a number or a letter."""
        return (*self.known_speaker_names, *(self.speaker_names or ()))

    @property
    def is_streamed(self) -> bool:
        return self.stream and self.response_format in STREAMED_FORMATS

    @property
    def has_languages(self) -> bool:
        """Whether the response names the languages that were detected, as the response of this model does at OpenAI."""
        return self.model == LANGUAGES_MODEL or bool(self.languages)

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.stream and not self.is_streamed:
            return (f"stream has no effect with response_format {self.response_format}",)
        return ()

    def options(self, task: Task) -> TranscribeOptions:
        values = {
            "language": self.language,
            "languages": self.languages or None,
            "multilingual": self.multilingual,
            "initial_prompt": self.prompt or None,
            "hotwords": self.hotwords or None,
            "hotword_boost": self.hotword_boost,
            "replacements": self.replacements or None,
            "mode": self.mode,
            "vad": self.vad,
            "retry_missed_speech": self.retry_missed_speech,
            "loudness": self.loudness,
            "channels": self.channels,
            "diarize": self.response_format == "diarized_json" or self.diarize,
            "speakers": self.speakers,
            "speaker_names": self.speaker_names,
        }
        values = {name: value for name, value in values.items() if value is not None}
        return to_options(
            task=task,
            word_timestamps=self.word_timestamps or "word" in self.timestamp_granularities,
            token_logprobs=bool(self.include),
            **(self.decoding_options() | values | (self.chunking_strategy.options() if self.chunking_strategy else {})),
        )


KNOWN_NAMES = frozenset(name for key, info in SpeechForm.model_fields.items() for name in (key, info.alias) if name)


def _conflict(param: str, text: str, code: str = "invalid_value") -> ApiError:
    return ApiError(text, param=param, code=code)


@dataclass(frozen=True)
class SpeechRequest:
    form: SpeechForm
    options: TranscribeOptions
    audio: ServiceAudio
    audio_param: Literal["file", "url"]
    warnings: tuple[str, ...] = ()  # what was asked for and is not done


SpeechFields = tuple[SpeechForm, TranscribeOptions, tuple[str, ...]]  # the last are the warnings


def read_speech_request(form: Form, task: Task, *, unknown_fields: UnknownFields = "refuse") -> SpeechRequest:
    n_characters = sum(len(name) + len(text) for name, text in form.fields)
    if n_characters <= MAX_KEPT_CHARACTERS and all(name == "file" for name, _ in form.files):
        speech, options, warnings = _read_fields_once(form.fields, task, unknown_fields)
    else:
        speech, options, warnings = _read_fields(form, task, unknown_fields)
    audio, audio_param = pick_audio(form.files, speech.url)
    return SpeechRequest(speech, options, audio, audio_param, warnings)


@lru_cache(MAX_KEPT_FORMS)
def _read_fields_once(fields: tuple[tuple[str, str], ...], task: Task, unknown_fields: UnknownFields) -> SpeechFields:
    """Clients send the same few fields with every file, and checking them takes longer than splitting the form."""
    return _read_fields(Form(fields, ()), task, unknown_fields)


def _read_fields(form: Form, task: Task, unknown_fields: UnknownFields) -> SpeechFields:
    values = _read_values(form)
    warnings: tuple[str, ...] = ()
    if unknown_fields == "warn" and (unknown := [name for name in values if name not in KNOWN_NAMES]):
        values = {name: value for name, value in values.items() if name in KNOWN_NAMES}
        warnings = (unknown_fields_warning(unknown),)
    speech = validate(SpeechForm, values)
    return speech, speech.options(task), (*warnings, *speech.warnings)


def _read_values(form: Form) -> dict[str, Any]:
    """The values by field; an empty text counts as left out."""
    values: dict[str, Any] = {}
    chunking: dict[str, str] = {}
    for name, all_texts in form_values(form, SpeechForm).items():
        texts = [text for text in all_texts if text]
        if not texts:
            continue
        field, _, key = name.removesuffix("]").partition("[")
        if field in LISTS and not key and (name.endswith("]") or len(texts) > 1 or field != "temperature"):
            values.setdefault(field, []).extend(texts)
        elif field == "chunking_strategy" and key:
            chunking[key] = single_value(name, texts)
        else:
            values[name] = single_value(name, texts)
    if chunking:
        if "chunking_strategy" in values:
            raise _conflict("chunking_strategy", "chunking_strategy was given twice: send it once")
        values["chunking_strategy"] = chunking
    return values
