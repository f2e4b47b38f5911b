"""What the server's own OpenAPI document says of the routes that read forms by themselves."""

from __future__ import annotations

from typing import Any, get_args

from choral.model.languages import CODES
from choral.server.speech_form import HOTTEST, MAX_PROMPT_CHARACTERS, Granularity, ResponseFormat
from choral.types import Loudness, Mode, Priority

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
REFUSALS = {
    "400": "a field or the audio is wrong; `param` names it",
    "401": "the API key is missing or not known",
    "403": "the address of `url` is one that this server does not read from",
    "404": "no such model, or nothing at the address of `url`",
    "408": "the upload stood still, or took too long",
    "413": "too many bytes, or too long",
    "415": "the content type is not that of a form",
    "424": "what `url` names could not be fetched",
    "429": "over a limit of the API key; `Retry-After` says when to come back",
    "503": "too much is under way, or the server is being shut down; `Retry-After` says when to come back",
}
MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
    },
}
LOGPROB = {
    "type": "object",
    "required": ["token", "bytes", "logprob"],
    "properties": {
        "token": {"type": "string"},
        "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
        "logprob": {"type": "number"},
    },
}
TRANSCRIPT = {
    "type": "object",
    "required": ["text", "usage"],
    "properties": {
        "text": {"type": "string"},
        "usage": {
            "type": "object",
            "required": ["type", "seconds"],
            "properties": {"type": {"const": "duration"}, "seconds": {"type": "integer", "minimum": 0}},
        },
        "language": {"type": "string"},
        "duration": {"type": "number"},
        "segments": {"type": ["array", "null"], "items": {"type": "object"}},
        "words": {"type": ["array", "null"], "items": {"type": "object"}},
        "logprobs": {"type": "array", "items": LOGPROB},
    },
}
OWN = "Choral's own. "
FIELDS: dict[str, dict[str, Any]] = {
    "file": {"type": "string", "format": "binary", "description": "the audio, in nearly any container and codec"},
    "url": {"type": "string", "maxLength": MAX_PROMPT_CHARACTERS, "description": OWN + "Its address instead of `file`"},
    "model": {"type": "string", "description": "a name from /v1/models; whisper-1 stands for the one there is"},
    "language": {"enum": list(CODES), "description": "code or English name; detected when not given"},
    "prompt": {
        "type": "string",
        "maxLength": MAX_PROMPT_CHARACTERS,
        "description": "text that came before; the model hears its last 224 tokens",
    },
    "response_format": {"enum": list(get_args(ResponseFormat)), "default": "json"},
    "temperature": {"type": "number", "minimum": 0, "maximum": HOTTEST, "description": "0: rises as far as it must"},
    "timestamp_granularities[]": {
        "type": "array",
        "items": {"enum": list(get_args(Granularity))},
        "description": "needs response_format verbose_json",
    },
    "include[]": {
        "type": "array",
        "items": {"enum": ["logprobs"]},
        "description": "the log-probability of every token of the text; needs response_format json",
    },
    "stream": {"type": "boolean", "description": "events with text as it becomes final; needs response_format json"},
    "chunking_strategy": {
        "type": "string",
        "description": 'auto, or JSON: {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 500}',
    },
    "hotwords": {"type": "string", "maxLength": MAX_PROMPT_CHARACTERS, "description": OWN + "Words to expect"},
    "mode": {"enum": list(get_args(Mode)), "description": OWN + "batched: all windows of a file at once"},
    "vad": {"type": "boolean", "description": OWN + "Leave out silence"},
    "word_timestamps": {"type": "boolean", "description": OWN + "Words in verbose_json; subtitles laid out by words"},
    "loudness": {"enum": list(get_args(Loudness)), "description": OWN + "Bring the sound to a loudness first"},
    "priority": {"enum": list(get_args(Priority)), "description": OWN + "batch goes behind interactive requests"},
}

# The schema is that of each event.
EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
EVENTS = {"text/event-stream": {"schema": EVENT}}


def speech(summary: str) -> dict[str, Any]:
    schema = {"type": "object", "required": ["model"], "properties": FIELDS, "additionalProperties": False}
    body = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    text = {"schema": {"type": "string"}}
    shapes = ("text/plain", "application/x-subrip", "text/vtt")
    content = {"application/json": {"schema": TRANSCRIPT}, **dict.fromkeys(shapes, text), **EVENTS}
    return _route(summary, "the transcript", content, tuple(REFUSALS), requestBody=body)


def models(summary: str) -> dict[str, Any]:
    listed = {"type": "array", "items": MODEL}
    schema = {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": listed},
    }
    return _route(summary, "the models", {"application/json": {"schema": schema}}, ("401",))


def model(summary: str) -> dict[str, Any]:
    return _route(summary, "the model", {"application/json": {"schema": MODEL}}, ("401", "404"))


def _route(summary: str, what: str, content: dict[str, Any], refusals: tuple[str, ...], **extra: Any) -> dict[str, Any]:
    refused = {
        status: {"description": REFUSALS[status], "content": {"application/json": {"schema": ERROR}}}
        for status in refusals
    }
    answers = {"200": {"description": what, "content": content}, **refused}
    return {"summary": summary, "response_model": None, "responses": answers, "openapi_extra": extra}
