"""The configuration of a transcription session, as pydantic models of OpenAI's two dialects: GA and beta.

`SessionConfig` is `session.audio.input` of the GA dialect and the configuration itself. An update changes only the
fields it names; `format`, `transcription` and `turn_detection` are each replaced as a whole. Unknown fields are errors,
and OpenAI features that Choral does not have may only be sent as switched off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from choral.errors import UsageError
from choral.model.languages import to_code
from choral.model.tokenizer import Tokenizer
from choral.options import TranscribeOptions
from choral.server.model_names import ModelNames
from choral.server.realtime.audio_formats import G711_RATE, FormatType, Int16, decode_samples
from choral.server.speech_form import MAX_PROMPT_CHARACTERS

MAX_PADDING_MS, MAX_SILENCE_MS = 5_000, 60_000
BetaFormat = Literal["pcm16", "g711_ulaw", "g711_alaw"]


@dataclass(frozen=True)
class ServedModel:
    """The validation context: what a session's `model` and `language` are checked against."""

    names: ModelNames
    tokenizer: Tokenizer


class SchemaModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def _off_values(*values: object) -> AfterValidator:
    """Accept null and `values`, which ask for what Choral does anyway, and nothing else."""

    def check(value: object) -> object:
        if value is not None and value not in values:
            raise PydanticCustomError("unsupported_value", "is not supported: leave it out")
        return value

    return AfterValidator(check)


NULL_AS_EMPTY = BeforeValidator(lambda value: "" if value is None else value)
NullOnly = Annotated[Any, _off_values(), Field(exclude=True)]
FalseOnly = Annotated[Any, _off_values(False), Field(exclude=True)]
EmptyOnly = Annotated[Any, _off_values([]), Field(exclude=True)]


class AudioFormat(SchemaModel):
    type: FormatType
    rate: Literal[24_000, 16_000] = 24_000  # of PCM; 16 kHz is an extension of OpenAI's API

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
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS), NULL_AS_EMPTY] = ""

    @field_validator("model")
    @classmethod
    def _require_served(cls, model: str, info: ValidationInfo) -> str:
        served: ServedModel | None = info.context
        if served is None or model in served.names:
            return model
        if model:
            context = {"advice": served.names.advice}
            raise PydanticCustomError("model_not_found", "is not served here: {advice}", context)
        return served.names.all[0]

    @field_validator("language")
    @classmethod
    def _require_language(cls, language: str | None, info: ValidationInfo) -> str | None:
        served: ServedModel | None = info.context
        if not language or served is None:
            return language or None
        try:
            code = to_code(language)
            served.tokenizer.language_token(code)
        except UsageError as error:
            raise PydanticCustomError("invalid_value", "cannot be used: {error}", {"error": str(error)}) from error
        return code

    @property
    def options(self) -> TranscribeOptions:
        return TranscribeOptions(language=self.language, initial_prompt=self.prompt or None)


class ServerVad(SchemaModel):
    """A turn ends after `silence_duration_ms` without speech."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[float, Field(ge=0, le=MAX_PADDING_MS), AfterValidator(round)] = 300
    silence_duration_ms: Annotated[float, Field(ge=0, le=MAX_SILENCE_MS), AfterValidator(round)] = 500
    create_response: FalseOnly = None
    interrupt_response: FalseOnly = None
    idle_timeout_ms: NullOnly = None

    @property
    def padding_s(self) -> float:
        return self.prefix_padding_ms / 1000

    @property
    def min_silence_s(self) -> float:
        return self.silence_duration_ms / 1000


class SessionConfig(SchemaModel):
    format: AudioFormat = AudioFormat(type="audio/pcm")
    transcription: TranscriptionConfig = TranscriptionConfig()
    turn_detection: ServerVad | None = ServerVad(type="server_vad")  # None: the client commits
    noise_reduction: NullOnly = None

    def updated(self, update: SessionConfig | BetaSession) -> SessionConfig:
        """The configuration with the fields that the update names."""
        names = update.model_fields_set & SessionConfig.model_fields.keys()
        return self.model_copy(update={name: getattr(update, name) for name in names})

    def to_json(self, session_id: str, *, is_beta: bool) -> dict[str, Any]:
        """The `session` object of server events."""
        session = {"id": session_id, "object": "realtime.transcription_session", "include": []}
        audio_input = {**self.model_dump(), "format": self.format.to_json(), "noise_reduction": None}
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
    input: SessionConfig = SessionConfig()


class TranscriptionSession(SchemaModel):
    """`session` of `session.update`: the GA dialect."""

    type: Literal["transcription"]
    audio: SessionAudio = SessionAudio()
    include: EmptyOnly = None


BETA_FORMATS: dict[BetaFormat, AudioFormat] = {
    "pcm16": AudioFormat(type="audio/pcm"),
    "g711_ulaw": AudioFormat(type="audio/pcmu"),
    "g711_alaw": AudioFormat(type="audio/pcma"),
}


class BetaSession(SchemaModel):
    """`session` of `transcription_session.update`: the beta dialect, with the attribute names of `SessionConfig`."""

    format: Annotated[BetaFormat, AfterValidator(BETA_FORMATS.__getitem__), Field(alias="input_audio_format")] = "pcm16"
    transcription: Annotated[TranscriptionConfig, Field(alias="input_audio_transcription")] = TranscriptionConfig()
    turn_detection: ServerVad | None = None
    noise_reduction: Annotated[NullOnly, Field(alias="input_audio_noise_reduction")] = None
    include: EmptyOnly = None
