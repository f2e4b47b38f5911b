"""The configuration of a transcription session, as pydantic models of OpenAI's two dialects: GA and beta.

`AudioInput` is `session.audio.input` of the GA dialect; `SessionConfig` adds what stands beside it. An update changes
only the fields it names; `format`, `transcription` and `turn_detection` are each replaced as a whole. OpenAI features
that Choral does not have are accepted; `session_warnings` tells the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from choral.errors import UsageError
from choral.model.languages import to_code
from choral.model.tokenizer import Tokenizer
from choral.options import MAX_LANGUAGES, TranscribeOptions
from choral.server.decoding_fields import MAX_KEYWORDS, Keyword
from choral.server.forms import AUTO
from choral.server.model_names import ModelNames
from choral.server.realtime.audio_formats import G711_RATE, FormatType, Int16, decode_samples
from choral.server.speech_form import MAX_PROMPT_CHARACTERS

MAX_PADDING_MS, MAX_SILENCE_MS = 5_000, 60_000
LANGUAGES_MODELS = ("gpt-transcribe", "gpt-live-transcribe")
# OpenAI's models without turn detection: their clients leave the field out, and commit. After a turn that the server
# ended, a commit would be an error.
COMMITTED_MODELS = ("gpt-realtime-whisper", "gpt-live-transcribe")
PcmRate = Literal[24_000, 16_000, 8_000, 32_000, 44_100, 48_000]
BetaFormat = Literal["pcm16", "g711_ulaw", "g711_alaw"]


@dataclass(frozen=True)
class ServedModel:
    """The validation context: what a session's `model` and `language` are checked against."""

    names: ModelNames
    tokenizer: Tokenizer


class SchemaModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


NULL_AS_EMPTY = BeforeValidator(lambda value: "" if value is None else value)
NULL_AS_NONE_GIVEN = BeforeValidator(lambda value: () if value is None else value)
TextList = Annotated[tuple[Keyword, ...], Strict(False), NULL_AS_NONE_GIVEN]
Include = Annotated[tuple[Literal["item.input_audio_transcription.logprobs"], ...], Strict(False), NULL_AS_NONE_GIVEN]


class AudioFormat(SchemaModel):
    type: FormatType
    rate: PcmRate = 24_000  # of PCM; all others are an extension of OpenAI's API

    @field_validator("rate", mode="before")
    @classmethod
    def _require_pcm(cls, rate: object, info: ValidationInfo) -> object:
        if info.data.get("type", "audio/pcm") != "audio/pcm":
            raise PydanticCustomError("unknown_parameter", "is not known here: G.711 has 8000 Hz, so leave it out")
        return rate

    @property
    def sample_rate(self) -> int:
        return self.rate if self.type == "audio/pcm" else G711_RATE

    def decode(self, data: bytes) -> Int16:
        return decode_samples(self.type, data)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(exclude=None if self.type == "audio/pcm" else {"rate"})


class TranscriptionConfig(SchemaModel):
    model: Annotated[str, NULL_AS_EMPTY, Field(validate_default=True)] = ""  # as the client calls it
    language: str | None = None  # None: detected in each turn
    languages: Annotated[TextList, Field(max_length=MAX_LANGUAGES)] = ()  # that may be detected
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS), NULL_AS_EMPTY] = ""
    keywords: Annotated[TextList, Field(max_length=MAX_KEYWORDS)] = ()
    delay: Annotated[Literal["minimal", "low", "medium", "high", "xhigh"] | None, Field(exclude=True)] = None
    diarize: bool = False  # name the speaker of each turn; an extension of OpenAI's API

    @field_validator("model")
    @classmethod
    def _require_served(cls, model: str, info: ValidationInfo) -> str:
        served: ServedModel | None = info.context
        if served is None or model in served.names:
            return model
        if model:
            context = {"advice": served.names.advice}
            raise PydanticCustomError("model_not_found", "is not served here: {advice}", context)
        return served.names.default

    @field_validator("language")
    @classmethod
    def _require_language(cls, language: str | None, info: ValidationInfo) -> str | None:
        served: ServedModel | None = info.context
        is_detected = language is None or language.strip().lower() in ("", AUTO)
        return None if is_detected or language is None else _code_of(language, served)

    @field_validator("languages")
    @classmethod
    def _require_languages(cls, languages: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return tuple(_code_of(language, info.context) for language in languages)

    @property
    def has_languages(self) -> bool:
        """Whether complete texts name their language, as those of these models do at OpenAI."""
        return self.model in LANGUAGES_MODELS or bool(self.languages)

    @property
    def options(self) -> TranscribeOptions:
        return TranscribeOptions(
            language=self.language, initial_prompt=self.prompt or None, hotwords=self.keywords or None
        )

    def to_json(self) -> dict[str, Any]:
        """Without what was not given, which has no null in OpenAI's schema."""
        return {name: value for name, value in self.model_dump(mode="json").items() if value or name == "model"}


def _code_of(language: str, served: ServedModel | None) -> str:
    """The code of a language that the model has."""
    if served is None:
        return language
    try:
        code = to_code(language)
        served.tokenizer.language_token(code)
    except UsageError as error:
        raise PydanticCustomError("invalid_value", "cannot be used: {error}", {"error": str(error)}) from error
    return code


Eagerness = Literal["low", "medium", "high", "auto"]
# Seconds of silence that end a turn with semantic_vad even if it does not sound complete; OpenAI's.
MAX_SILENCE_S: dict[Eagerness, float] = {"low": 8.0, "medium": 4.0, "auto": 4.0, "high": 2.0}
# The same in milliseconds where nobody knows whether it does.
FALLBACK_SILENCE_MS: dict[Eagerness, int] = {"low": 1_500, "medium": 800, "auto": 800, "high": 400}


class TurnDetection(SchemaModel):
    """A turn ends after `silence_duration_ms` without speech, or when it sounds complete."""

    type: Literal["server_vad", "semantic_vad"]
    eagerness: Eagerness = "auto"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[float, Field(ge=0, le=MAX_PADDING_MS), AfterValidator(round)] = 300
    silence_duration_ms: Annotated[
        float, Field(ge=0, le=MAX_SILENCE_MS, validate_default=True), AfterValidator(round)
    ] = 500
    create_response: Annotated[bool | None, Field(exclude=True)] = None
    interrupt_response: Annotated[bool | None, Field(exclude=True)] = None
    idle_timeout_ms: Annotated[float | None, Field(exclude=True)] = None

    @field_validator("silence_duration_ms")
    @classmethod
    def _follow_eagerness(cls, silence_ms: int, info: ValidationInfo) -> int:
        is_semantic = info.data.get("type") == "semantic_vad"
        return FALLBACK_SILENCE_MS[info.data.get("eagerness", "auto")] if is_semantic else silence_ms

    @property
    def is_semantic(self) -> bool:
        return self.type == "semantic_vad"

    @property
    def max_silence_s(self) -> float:
        """With `semantic_vad`: in a turn that does not sound complete."""
        return MAX_SILENCE_S[self.eagerness]

    @property
    def padding_s(self) -> float:
        return self.prefix_padding_ms / 1000

    @property
    def min_silence_s(self) -> float:
        return self.silence_duration_ms / 1000

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(exclude={"silence_duration_ms"} if self.is_semantic else {"eagerness"})


class NoiseReduction(SchemaModel):
    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


class AudioInput(SchemaModel):
    format: AudioFormat = AudioFormat(type="audio/pcm")
    transcription: TranscriptionConfig = TranscriptionConfig()
    turn_detection: TurnDetection | None = TurnDetection(type="server_vad")  # None: the client commits
    noise_reduction: Annotated[NoiseReduction | None, Field(exclude=True)] = None


class SessionConfig(AudioInput):
    """The configuration of a session."""

    include: Annotated[Include, Field(exclude=True)] = ()

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.include)

    @classmethod
    def of_model(cls, model: str) -> SessionConfig:
        return cls(transcription=TranscriptionConfig(model=model))._with_default_turns({})

    def updated(self, session: TranscriptionSession | BetaSession) -> SessionConfig:
        """The configuration with the fields that the update names."""
        parts = [session] if isinstance(session, BetaSession) else [session, session.audio.input]
        names = SessionConfig.model_fields.keys() - {"noise_reduction"}
        fields = {name: getattr(part, name) for part in parts for name in part.model_fields_set & names}
        return self._with_default_turns(fields)

    def _with_default_turns(self, fields: dict[str, Any]) -> SessionConfig:
        """A copy with these fields; until turn detection is given, it is that of the model's name."""
        config = self.model_copy(update=fields)
        if "turn_detection" in config.model_fields_set or config.transcription.model not in COMMITTED_MODELS:
            return config
        return config.model_copy(update={"turn_detection": None})

    def to_json(self, session_id: str, *, is_beta: bool) -> dict[str, Any]:
        """The `session` object of server events."""
        session = {"id": session_id, "object": "realtime.transcription_session", "include": [*self.include]}
        audio_input = {
            **self.model_dump(),
            "format": self.format.to_json(),
            "transcription": self.transcription.to_json(),
            "turn_detection": self.turn_detection and self.turn_detection.to_json(),
            "noise_reduction": None,
        }
        if not is_beta:
            return {**session, "type": "transcription", "audio": {"input": audio_input}}
        beta_names = {audio_format.type: name for name, audio_format in BETA_FORMATS.items()}
        return {
            **session,
            "input_audio_format": beta_names[self.format.type],
            "input_audio_transcription": audio_input["transcription"],
            "input_audio_noise_reduction": None,
            "turn_detection": audio_input["turn_detection"],
        }


class SessionAudio(SchemaModel):
    input: AudioInput = AudioInput()


class TranscriptionSession(SchemaModel):
    """`session` of `session.update`: the GA dialect."""

    type: Literal["transcription"]
    audio: SessionAudio = SessionAudio()
    include: Include = ()


BETA_FORMATS: dict[BetaFormat, AudioFormat] = {
    "pcm16": AudioFormat(type="audio/pcm"),
    "g711_ulaw": AudioFormat(type="audio/pcmu"),
    "g711_alaw": AudioFormat(type="audio/pcma"),
}


class BetaSession(SchemaModel):
    """`session` of `transcription_session.update`: the beta dialect, with the attribute names of `SessionConfig`."""

    format: Annotated[BetaFormat, AfterValidator(BETA_FORMATS.__getitem__), Field(alias="input_audio_format")] = "pcm16"
    transcription: Annotated[TranscriptionConfig, Field(alias="input_audio_transcription")] = TranscriptionConfig()
    turn_detection: TurnDetection | None = None
    noise_reduction: Annotated[NoiseReduction | None, Field(alias="input_audio_noise_reduction")] = None
    include: Include = ()
