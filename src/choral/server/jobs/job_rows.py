"""Rows of the job table as records, also those that another version of Choral stored."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from choral.errors import UsageError
from choral.jobs.job_states import State
from choral.jobs.record import JobRecord, Timings, WebhookAttempt, known_fields
from choral.jobs.request import AudioRef, JobRequest
from choral.options import TranscribeOptions
from choral.remote.urls import url_host, url_problem

PLAIN_COLUMNS = (
    "created_at", "queued_at", "started_at", "ended_at", "due_at", "attempts", "crashes", "duration_s", "error",
    "error_kind", "webhook",
)  # fmt: skip
# All but the result, which may be large and is read only where it is needed.
RECORD_COLUMNS = ", ".join(("id", "request", "state", "timings", "webhook_attempts", *PLAIN_COLUMNS))


def record_of(row: sqlite3.Row, request: JobRequest | None = None) -> JobRecord:
    """`request`: that of the row, where it was read already."""
    state: State = row["state"]
    return JobRecord(
        request=request or readable_request(row),
        state=state,
        done_s=(row["duration_s"] or 0.0) if state == "succeeded" else 0.0,
        timings=Timings(**known_fields(Timings, json_object(row["timings"]))),
        webhook_attempts=tuple(
            WebhookAttempt(**known_fields(WebhookAttempt, each)) for each in json.loads(row["webhook_attempts"])
        ),
        **{name: row[name] for name in PLAIN_COLUMNS},
    )


def readable_request(row: sqlite3.Row, *, is_brief: bool = False) -> JobRequest:
    """The request, or what can be shown of one that this version cannot read."""
    try:
        return JobRequest.from_json(row["request"], is_brief=is_brief)
    except UsageError:
        fields = json_object(row["request"])
        audio = fields.get("audio")
        name = audio.get("name") if isinstance(audio, dict) else None
        callback = fields.get("callback")
        return JobRequest(
            id=row["id"],
            audio=AudioRef("path", "", str(name or "unknown")),
            options=TranscribeOptions(),
            callback=callback if isinstance(callback, str) and url_problem(callback) is None else None,
        )


def json_object(text: str) -> dict[str, Any]:
    """Empty if the text is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def audio_host(request: str) -> str | None:
    """The host that a job's audio is fetched from; None: it is not fetched."""
    audio = json_object(request).get("audio")
    if not isinstance(audio, dict) or audio.get("kind") != "url":
        return None
    return url_host(str(audio.get("place")))
