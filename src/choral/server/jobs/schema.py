"""What the server's OpenAPI document says of the routes for jobs."""

from __future__ import annotations

from typing import Any, get_args

from choral.jobs.record import State
from choral.server.jobs.job_form import HINTS
from choral.server.openapi import ERROR, EVENTS, REFUSALS
from choral.types import Priority

JOB = {
    "type": "object",
    "required": ["id", "object", "state", "progress", "audio", "options", "priority", "created_at", "timings", "error"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "job"},
        "state": {"enum": list(get_args(State))},
        "progress": {
            "type": "object",
            "required": ["done_s", "duration_s"],
            "properties": {"done_s": {"type": "number"}, "duration_s": {"type": ["number", "null"]}},
        },
        "priority": {"enum": list(get_args(Priority))},
        "result": {"type": "object"},
    },
}
JOBS = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": JOB}},
}
DELETED = {
    "type": "object",
    "required": ["id", "object", "deleted"],
    "properties": {"id": {"type": "string"}, "object": {"const": "job"}, "deleted": {"const": True}},
}
JOB_REFUSALS = {
    **REFUSALS,
    "404": "no such job",
    "409": "the job has not ended yet",
    "410": "the job was cancelled",
    "422": "the job failed; the message says why",
    "507": "the disk is full",
}
TEXT = {"schema": {"type": "string"}}
RESULT_TYPES = ("text/plain", "application/x-subrip", "text/vtt", "text/tab-separated-values")


def submit() -> dict[str, Any]:
    own: dict[str, Any] = {
        "url": {"type": "string", "format": "uri"},
        "callback": {"type": "string", "format": "uri"},
        "priority": {"enum": list(get_args(Priority))},
    }
    fields: dict[str, Any] = own | {name: {} for name in HINTS}
    form = {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}, **fields}}
    by_address = {"type": "object", "required": ["url"], "properties": fields, "additionalProperties": False}
    body = {
        "required": True,
        "content": {"multipart/form-data": {"schema": form}, "application/json": {"schema": by_address}},
    }
    refusals = ("400", "401", "408", "413", "415", "429", "503", "507")
    return _route("Submit a job", {"202": ("the job", JOB)}, refusals, requestBody=body)


def show() -> dict[str, Any]:
    route = _route("A job, with its result once there is one", {"200": ("the job", JOB)}, _FINDING)
    route["responses"]["200"]["content"] |= dict.fromkeys(RESULT_TYPES, TEXT)
    route["responses"]["200"]["content"]["application/json"] = {"schema": {"type": "object"}}
    return route


_FINDING = ("400", "401", "404", "409", "410", "422", "503")


def newest() -> dict[str, Any]:
    return _route("The newest jobs", {"200": ("the jobs", JOBS)}, ("400", "401", "503"))


def remove() -> dict[str, Any]:
    answers = {"200": ("cancelled, or forgotten where it had ended", {"anyOf": [JOB, DELETED]})}
    return _route("Cancel a job that is under way; forget one that has ended", answers, ("400", "401", "404", "503"))


def events() -> dict[str, Any]:
    route = _route("Follow a job: server-sent events", {"200": ("the events", {})}, ("400", "401", "404", "503"))
    route["responses"]["200"]["content"] = EVENTS
    return route


def _route(
    summary: str, answers: dict[str, tuple[str, dict[str, Any]]], refusals: tuple[str, ...], **extra: Any
) -> dict[str, Any]:
    given = {
        status: {"description": what, "content": {"application/json": {"schema": schema}}}
        for status, (what, schema) in answers.items()
    }
    refused = {
        status: {"description": JOB_REFUSALS[status], "content": {"application/json": {"schema": ERROR}}}
        for status in refusals
    }
    return {"summary": summary, "response_model": None, "responses": {**given, **refused}, "openapi_extra": extra}
