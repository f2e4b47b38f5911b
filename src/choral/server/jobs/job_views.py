"""A job as JSON: the same fields in the answers, in lists and in events."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from choral import formats
from choral.jobs.record import JobRecord
from choral.jobs.request import changed_options
from choral.types import Segment, Transcript


def job_fields(record: JobRecord) -> dict[str, Any]:
    error = None if record.error is None else {"message": record.error, "type": record.error_kind}
    return {
        "id": record.id,
        "object": "job",
        "state": record.state,
        "phase": record.phase,
        "progress": {"done_s": record.done_s, "duration_s": record.duration_s},
        "audio": record.request.audio.name,
        "options": changed_options(record.request.options),
        "priority": record.request.priority,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "due_at": record.due_at,
        "attempts": record.attempts,
        "timings": dataclasses.asdict(record.timings),
        "error": error,
        "callback": record.request.callback,
        "webhook": record.webhook,
    }


def result_fields(transcript: Transcript) -> dict[str, Any]:
    """As `choral transcribe --format verbose_json` has it."""
    fields: dict[str, Any] = json.loads(formats.verbose_json(transcript))
    return fields


def segment_fields(segment: Segment) -> dict[str, Any]:
    [fields] = result_fields(Transcript(segment.text, (segment,), "en", None, segment.end))["segments"]
    return dict(fields)
