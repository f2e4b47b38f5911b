"""The message that tells what became of a job: its body, its signature, and one attempt to deliver it.

    Choral-Signature: t=1763200000,v1=<hex of HMAC-SHA256(secret, "1763200000." + body)>
    Idempotency-Key: <job id>, and for a job that was retried by hand <job id>.2 and so on

An answer of 4xx other than 408 and 429 says that the receiver does not want it, and an address that the guard refuses
is never asked: both are final. When to try again is for the caller to say, with `verdict`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from dataclasses import dataclass

from choral.jobs.backoff import backoff_s
from choral.jobs.record import JobRecord
from choral.remote.guard import Guard
from choral.remote.lifeline import Lifeline
from choral.remote.transport import ForbiddenError, RefusedError, UnreachableError, open_url

MAX_TRIES = 10
LONGEST_PAUSE_S = 3600.0
INLINE_BYTES = 256 * 1024  # of a result, where a link can be sent instead
_TRY_AGAIN = (408, 429)


@dataclass(frozen=True)
class Answer:
    status: int | None  # None: there was none
    error: str | None  # None: taken
    is_final: bool
    wait_s: float = 0.0  # that the receiver asked for


def signature(secret: str, body: bytes, at: int) -> str:
    """For receivers too: compare it with the header, and refuse what is old."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def body_of(record: JobRecord, result: bytes | None, link: str) -> bytes:
    fields: dict[str, object] = {
        "v": 1,
        "id": record.id,
        "status": record.state,
        "audio": record.request.audio.name,
        "error": record.error,
        "result": None,
    }
    if result is not None and link and len(result) > INLINE_BYTES:
        fields["result_url"] = link.replace("{id}", record.id)
    elif result is not None:
        fields["result"] = json.loads(result)
    return json.dumps(fields, ensure_ascii=False).encode()


def post(url: str, body: bytes, key: str, guard: Guard, secret: str, timeout_s: float) -> Answer:
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    if secret:
        headers["Choral-Signature"] = signature(secret, body, int(time.time()))
    lifeline = Lifeline()
    try:
        with (
            lifeline.lasting(timeout_s),
            open_url(url, headers=headers, timeout_s=timeout_s, body=body, guard=guard, lifeline=lifeline) as response,
        ):
            return Answer(response.status, None, is_final=True)
    except ForbiddenError as error:
        return Answer(None, str(error), is_final=True)
    except (RefusedError, UnreachableError) as error:
        status = error.status
        is_final = status is not None and 400 <= status < 500 and status not in _TRY_AGAIN
        text = f"no answer in {timeout_s:g} s" if lifeline.is_cut else str(error)
        return Answer(status, text, is_final, getattr(error, "wait_s", 0.0))


def verdict(answer: Answer, n_tries: int, retry_s: float) -> tuple[str, float]:
    """delivered, failed, or pending and how long to wait before the next try."""
    if answer.error is None:
        return "delivered", 0.0
    if answer.is_final or n_tries >= MAX_TRIES:
        return "failed", 0.0
    return "pending", min(max(backoff_s(n_tries, retry_s), answer.wait_s), LONGEST_PAUSE_S)
