"""What is stored about jobs and workers: job records, worker statuses, and transcripts as JSON.

A record in Redis is a hash that only scripts modify. The server's own queue keeps the same fields in a table.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from choral.diarization import Speaker, SpeakerTurn
from choral.errors import JobCancelled, JobFailed, JobNotFound, JobNotReady, UsageError
from choral.jobs.job_states import ENDED, State
from choral.jobs.request import JobRequest
from choral.transcript import Segment, Transcript, Word
from choral.validation import check_fields

Phase = Literal["prep", "engine"]
TRANSCRIPT_VERSION = 1
MAX_TIME_S = 253_402_300_800  # the year 10000: later times cannot be printed
OPTIONAL_FIELDS = ("channel", "language", "speaker", "speakers", "turns")
Part = TypeVar("Part")


@dataclass(frozen=True)
class Timings:
    """Seconds of each phase of the last run; None: the phase was not reached."""

    queued_s: float | None = None
    fetch_s: float | None = None
    decode_s: float | None = None
    engine_s: float | None = None


@dataclass(frozen=True)
class WebhookAttempt:
    at: float
    status: int | None  # None: no response
    error: str | None  # None: delivered


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The defaults are those of a job that waits for its first attempt."""

    request: JobRequest
    state: State = "queued"
    created_at: float  # times are Unix seconds by the clock of Redis, or of the server that keeps the job
    queued_at: float
    started_at: float | None = None
    ended_at: float | None = None
    due_at: float | None = None  # of the next attempt, while waiting
    attempts: int = 0
    crashes: int = 0  # runs whose worker, server or engine crashed or stopped responding
    worker: str | None = None
    phase: Phase | None = None
    done_s: float = 0.0  # of the audio
    duration_s: float | None = None
    timings: Timings = Timings()
    error: str | None = None
    error_kind: str | None = None  # class name of the error
    is_cancel_requested: bool = False
    webhook: str | None = None  # pending, delivered or failed; None: no callback, or not ended
    webhook_attempts: tuple[WebhookAttempt, ...] = ()

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def require_success(self) -> None:
        """Raise the `JobError` for the state of a job without a result."""
        if self.state == "cancelled":
            raise JobCancelled(f"job {self.id} was cancelled")
        if not self.has_ended:
            raise JobNotReady(f"job {self.id} is {self.state}: wait for it")
        if self.state != "succeeded":
            raise JobFailed(f"job {self.id} ({self.request.audio.name}): {self.error}")

    def to_json(self) -> str:
        """All fields, with the request as it was submitted."""
        fields = dataclasses.asdict(self) | {"request": json.loads(self.request.to_json())}
        return json.dumps({"id": self.id, **fields}, ensure_ascii=False)


def job_not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"job {job_id} does not exist: check the id; jobs are deleted some days after they end")


# Of the hash, which also holds small audio that is not read here. The presence of "cancel" is the request to cancel.
_STORED_NAMES = {"is_cancel_requested": "cancel"}
FIELDS = tuple(_STORED_NAMES.get(field.name, field.name) for field in dataclasses.fields(JobRecord))


def read_record(values: Sequence[bytes | None], *, is_brief: bool = False) -> JobRecord | None:
    """Parse the values of `FIELDS`; None: no such job. Raises `UsageError` for a record that cannot be read.

    `is_brief` as in `JobRequest.from_json`.
    """
    fields = {
        name: value.decode(errors="replace") for name, value in zip(FIELDS, values, strict=True) if value is not None
    }
    if "request" not in fields:
        return None
    try:
        return _checked(_parse(fields, is_brief))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"the record of this job cannot be read ({error!r}): submit it again") from error


def _parse(fields: dict[str, str], is_brief: bool) -> JobRecord:
    created_at = _time(fields["created_at"])
    return JobRecord(
        request=JobRequest.from_json(fields["request"], is_brief=is_brief),
        state=cast(State, fields["state"]),
        created_at=created_at,
        queued_at=_time(fields["queued_at"]) if "queued_at" in fields else created_at,
        started_at=_time(fields["started_at"]) if "started_at" in fields else None,
        ended_at=_time(fields["ended_at"]) if "ended_at" in fields else None,
        due_at=_time(fields["due_at"]) if "due_at" in fields else None,
        attempts=int(fields.get("attempts", 0)),
        crashes=int(fields.get("crashes", 0)),
        worker=fields.get("worker"),
        phase=cast(Phase | None, fields.get("phase")),
        done_s=float(fields.get("done_s", 0.0)),
        duration_s=float(fields["duration_s"]) if "duration_s" in fields else None,
        timings=_checked(Timings(**known_fields(Timings, json.loads(fields.get("timings", "{}"))))),
        error=fields.get("error"),
        error_kind=fields.get("error_kind"),
        is_cancel_requested="cancel" in fields,
        webhook=fields.get("webhook"),
        webhook_attempts=tuple(
            _checked(WebhookAttempt(**known_fields(WebhookAttempt, each)))
            for each in json.loads(fields.get("webhook_attempts", "[]"))
        ),
    )


def _checked(part: Part) -> Part:
    """The same, with values of the right types: what is read can be shown."""
    try:
        check_fields(part)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return part


def known_fields(kind: type, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that the dataclass has; those of newer versions are left out."""
    known = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in fields.items() if name in known}


def _time(text: str) -> float:
    time_s = float(text)
    if not 0 <= time_s < MAX_TIME_S:
        raise ValueError(f"{text[:20]} is not a time")
    return time_s


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What a worker publishes with every heartbeat."""

    name: str
    host: str
    model: str
    device: str
    started_at: float  # by the clock of its machine
    in_prep: int  # jobs being fetched or decoded, or waiting for it
    in_engine: int
    succeeded: int  # since its start
    failed: int
    audio_per_s: float  # seconds of audio per second, over the last minute
    busy_share: float  # of the engine's time, over the last minute
    is_stopping: bool

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerStatus:
        """Ignores fields of newer versions."""
        return cls(**known_fields(cls, json.loads(text)))


def transcript_to_json(transcript: Transcript) -> str:
    """All fields; numbers that JSON does not have (NaN, infinity) become null."""
    fields = {"v": TRANSCRIPT_VERSION, **dataclasses.asdict(transcript, dict_factory=_without_absent)}
    return json.dumps(_finite(fields), ensure_ascii=False, allow_nan=False)


def _without_absent(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Without what most results do not have, because older versions do not know it."""
    return {name: value for name, value in fields if name not in OPTIONAL_FIELDS or value}


def transcript_from_json(text: str | bytes) -> Transcript:
    """Equal to the transcript that was stored. Raises `JobFailed` for one that this version cannot read."""
    try:
        fields = json.loads(text)
        version = fields.pop("v", None)
        if version != TRANSCRIPT_VERSION:
            raise JobFailed(
                f"this result has version {version!r}, and this Choral reads {TRANSCRIPT_VERSION}: update the older one"
            )
        segments = tuple(_segment(segment) for segment in fields.pop("segments"))
        speakers = tuple(
            Speaker(**{**each, "embedding": tuple(each["embedding"])}) for each in fields.pop("speakers", ())
        )
        turns = tuple(SpeakerTurn(**each) for each in fields.pop("turns", ()))
        warnings = tuple(fields.pop("warnings"))
        return Transcript(segments=segments, warnings=warnings, speakers=speakers, turns=turns, **fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise JobFailed(
            f"this result cannot be read ({type(error).__name__}: {error}): submit the job again"
        ) from error


def _segment(fields: dict[str, Any]) -> Segment:
    words, tokens, logprobs = fields.pop("words"), fields.pop("tokens"), fields.pop("token_logprobs", None)
    return Segment(
        **_with_nan(fields),
        tokens=tuple(tokens),
        words=None
        if words is None
        else tuple(Word(**_with_nan(word)) for word in words),  # unspoken ones have no times
        token_logprobs=None if logprobs is None else tuple(logprobs),
    )


def _with_nan(fields: dict[str, Any]) -> dict[str, Any]:
    """Optional fields are absent, so null is a number that JSON does not have."""
    return {name: math.nan if value is None else value for name, value in fields.items()}


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
