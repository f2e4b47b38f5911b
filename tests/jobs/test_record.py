"""Job requests and records as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from choral.errors import UsageError
from choral.jobs.record import FIELDS, JobRecord, read_record
from choral.jobs.request import AudioRef, JobRequest
from choral.options import Priority, TranscribeOptions


def request_of(job_id: str = "job", priority: Priority = "interactive") -> JobRequest:
    return JobRequest(
        id=job_id, audio=AudioRef("inline", "", "a"), options=TranscribeOptions(beam_size=2), priority=priority
    )


def record_of(**fields: str) -> JobRecord:
    values = {"request": request_of().to_json(), "created_at": "12.5", **fields}
    record = read_record([values[name].encode() if name in values else None for name in FIELDS])
    assert record is not None
    return record


def test_records_are_read_from_redis_and_written_as_json() -> None:
    assert read_record([None] * len(FIELDS)) is None
    record = record_of(
        state="waiting", due_at="20", cancel="1", webhook_attempts='[{"at": 1, "status": 500, "error": "x"}]'
    )
    assert (record.id, record.due_at, record.is_cancel_requested, record.attempts) == ("job", 20.0, True, 0)
    fields = json.loads(record.to_json())
    assert (fields["id"], fields["state"], fields["request"]["options"]) == ("job", "waiting", {"beam_size": 2})
    assert fields["timings"] == dict.fromkeys(["queued_s", "fetch_s", "decode_s", "engine_s"])
    assert fields["webhook_attempts"] == [{"at": 1, "status": 500, "error": "x"}]


def test_requests_of_other_versions_are_refused() -> None:
    fields = json.loads(request_of().to_json())
    assert JobRequest.from_json(json.dumps(fields)) == request_of()
    with pytest.raises(UsageError, match="version 2"):
        JobRequest.from_json(json.dumps({**fields, "v": 2}))
    with pytest.raises(UsageError, match="unknown option 'new'"):
        JobRequest.from_json(json.dumps({**fields, "options": {"new": 1}}))


def test_requests_that_align_a_text() -> None:
    request = replace(request_of(), align="Ask not what your country can do for you. " * 200)
    assert JobRequest.from_json(request.to_json()) == request
    assert JobRequest.from_json(request.to_json(), is_brief=True).align is None
    assert "align" not in json.loads(request_of().to_json())
    with pytest.raises(UsageError, match=r"1,000,001 characters, and a job takes at most 1,000,000"):
        replace(request, align="a" * 1_000_001)
    with pytest.raises(UsageError, match="not with a translation"):
        replace(request, options=TranscribeOptions(task="translate"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "asleep"),
        ("phase", "lunch"),
        ("created_at", "nan"),
        ("ended_at", "1e300"),
        ("duration_s", "inf"),
        ("done_s", "half"),
        ("attempts", "1.5"),
        ("timings", '{"fetch_s": "long"}'),
        ("timings", "[" * 100_000),
        ("webhook_attempts", '[{"at": [], "status": 500, "error": "x"}]'),
        ("request", request_of().to_json().replace('"inline"', '"tape"')),
        ("request", request_of().to_json().replace('"name": "a"', '"name": 1')),
        ("request", request_of().to_json().replace('"name": "a"', '"name": "\\ud800"')),
    ],
)
def test_damaged_records_are_refused(name: str, value: str) -> None:
    """A record that is read can be shown."""
    assert record_of(state="queued")
    with pytest.raises(UsageError, match=r"cannot be read|must be (one of|a string)"):
        record_of(**{"state": "queued", name: value})
