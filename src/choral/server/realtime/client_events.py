"""OpenAI's client events of a transcription session, parsed and validated with pydantic.

Unknown fields are left out, and returned beside the event. A bad event is an `ApiError` whose `param` is the path of
the first wrong field, as in `session.audio.input.format.rate`, and whose message says what to send instead.
"""

from __future__ import annotations

import base64
import copy
import json
import reprlib
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from choral.server.api_errors import ApiError
from choral.server.realtime.session_config import BetaSession, SchemaModel, ServedModel, TranscriptionSession

MAX_ID_CHARACTERS, MAX_ITEM_ID_CHARACTERS = 512, 64
MAX_PARTS = 16  # of a message
MAX_VALUES = 10_000  # in the JSON of a message: parsing a million of them would hold the GIL for most of a second
MAX_NAME_CHARACTERS = 60  # of an unknown field, in error messages
# Code and message of pydantic's error types; of others, pydantic's message follows the value.
ERRORS = {
    "missing": ("missing_required_parameter", "is missing"),
    "model_type": ("invalid_type", "must be an object in braces"),
    "string_type": ("invalid_type", "must be a string"),
    "string_too_long": ("string_above_max_length", "has more than {max_length} characters: shorten it"),
}
# The types of our own validation errors, which are also their codes.
OWN_ERRORS = ("unsupported_value", "unknown_parameter", "model_not_found", "invalid_value", "invalid_type")


def _decode_base64(value: object) -> bytes:
    if not isinstance(value, str):
        raise PydanticCustomError("invalid_type", "must be a string in base64")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise PydanticCustomError("invalid_value", "is not base64: {error}", {"error": str(error)}) from error


class BaseEvent(SchemaModel):
    event_id: Annotated[str, Field(max_length=MAX_ID_CHARACTERS)] | None = None


class SessionUpdate(BaseEvent):
    type: Literal["session.update"]
    session: TranscriptionSession


class TranscriptionSessionUpdate(BaseEvent):
    type: Literal["transcription_session.update"]
    session: BetaSession


class InputAudioBufferAppend(BaseEvent):
    type: Literal["input_audio_buffer.append"]
    audio: Annotated[bytes, BeforeValidator(_decode_base64)]


class InputAudioBufferCommit(BaseEvent):
    type: Literal["input_audio_buffer.commit"]


class InputAudioBufferClear(BaseEvent):
    type: Literal["input_audio_buffer.clear"]


class AudioContent(SchemaModel):
    type: Literal["input_audio"]
    audio: Annotated[bytes, BeforeValidator(_decode_base64)]
    transcript: None = None


class UserMessage(SchemaModel):
    type: Literal["message"]
    role: Literal["user"]
    content: Annotated[list[AudioContent], Field(min_length=1, max_length=MAX_PARTS)]
    id: Annotated[str, Field(min_length=1, max_length=MAX_ITEM_ID_CHARACTERS)] | None = None
    object: Literal["realtime.item"] = "realtime.item"
    status: Literal["completed", "incomplete", "in_progress"] = "completed"


class ConversationItemCreate(BaseEvent):
    type: Literal["conversation.item.create"]
    item: UserMessage


class ConversationItemRetrieve(BaseEvent):
    type: Literal["conversation.item.retrieve"]
    item_id: Annotated[str, Field(max_length=MAX_ID_CHARACTERS)]


class ConversationItemDelete(BaseEvent):
    type: Literal["conversation.item.delete"]
    item_id: Annotated[str, Field(max_length=MAX_ID_CHARACTERS)]


ClientEvent = (
    SessionUpdate
    | TranscriptionSessionUpdate
    | InputAudioBufferAppend
    | InputAudioBufferCommit
    | InputAudioBufferClear
    | ConversationItemCreate
    | ConversationItemRetrieve
    | ConversationItemDelete
)
Parsed = TypeVar("Parsed")
EVENT_ADAPTER: TypeAdapter[ClientEvent] = TypeAdapter(Annotated[ClientEvent, Field(discriminator="type")])


def parse_object(text: str) -> dict[str, Any]:
    if sum(map(text.count, "[{,")) > MAX_VALUES:
        raise ApiError(f"the message has more than {MAX_VALUES} values: send one event", code="invalid_json")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the message is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError("an event must be an object in braces", code="invalid_type")
    return value


def event_id_of(fields: dict[str, Any]) -> str | None:
    """The id to quote in an error event; None if there is no valid one."""
    event_id = fields.get("event_id")
    return event_id if isinstance(event_id, str) and len(event_id) <= MAX_ID_CHARACTERS else None


def parse_event(fields: dict[str, Any], served: ServedModel) -> tuple[ClientEvent, list[str]]:
    """The event, and the paths of its unknown fields."""
    return validate_known(EVENT_ADAPTER, fields, served, n_tags=1)  # the first part of a path is the event's type


def validate_known(
    adapter: TypeAdapter[Parsed], fields: dict[str, Any], served: ServedModel, *, n_tags: int = 0
) -> tuple[Parsed, list[str]]:
    """The object without its unknown fields, and the paths of those; `n_tags` is how many parts precede a path."""
    try:
        return adapter.validate_python(fields, context=served), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
        wrong = next((each for each in errors if each["type"] != "extra_forbidden"), None)
        if wrong is not None:
            raise _api_error(wrong, n_tags) from error
    paths = [each["loc"][n_tags:] for each in errors]
    known = adapter.validate_python(_without(fields, paths), context=served)
    return known, [_path_text(path) for path in paths]


def _without(fields: dict[str, Any], paths: list[tuple[int | str, ...]]) -> dict[str, Any]:
    """A copy without the fields at these paths."""
    rest = copy.deepcopy(fields)
    for *parents, name in paths:
        parent: Any = rest
        for part in parents:
            parent = parent[part]
        del parent[name]
    return rest


def _path_text(path: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:MAX_NAME_CHARACTERS] for part in path)


def _api_error(error: ErrorDetails, n_tags: int) -> ApiError:
    match error["type"]:
        case "union_tag_not_found":
            return ApiError("type is missing", param="type", code="missing_required_parameter")
        case "union_tag_invalid":
            expected = error["ctx"]["expected_tags"].replace("'", "")
            message = f"type is {reprlib.repr(error['input']['type'])}; a transcription session accepts {expected}"
            return ApiError(message, param="type", code="invalid_value")
    path = _path_text(error["loc"][n_tags:])
    if error["type"] in OWN_ERRORS:
        code, message = error["type"], error["msg"]
    else:
        code, message = ERRORS.get(error["type"], ("invalid_value", "is {value}: {advice}"))
        value, advice = reprlib.repr(error["input"]), error["msg"][0].lower() + error["msg"][1:]
        message = message.format(value=value, advice=advice, **error.get("ctx", {}))
    return ApiError(f"{path or 'the event'} {message}", param=path or None, code=code)
