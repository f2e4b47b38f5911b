"""The states of a job and the numbers that decide between them, the same for every store.

    queued ── running ─┬─ succeeded
      ↑          │     ├─ failed      an error that a retry would not fix
      └─ waiting ┘     ├─ dead        every attempt failed, or it crashed too often: on the dead-letter list of Redis
                       └─ cancelled

A run is an attempt, unless it was put back through no fault of its own. A run that ended together with its worker,
server or engine is a crash: it counts against `max_crashes`, every other failed run against `max_attempts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from choral.common.backoff import backoff_s
from choral.errors import ChoralError

State = Literal["queued", "running", "waiting", "succeeded", "failed", "dead", "cancelled"]
ENDED: tuple[State, ...] = ("succeeded", "failed", "dead", "cancelled")
DAY_S = 86_400

MAX_ATTEMPTS = 4
MAX_CRASHES = 3  # a crash counts against every job that was running, and most of them are not its cause
RETRY_S, MAX_RETRY_S = 5.0, 600.0
PUT_BACK_S = 1.0  # before a job is put back that the engine had no capacity for
MAX_INTERACTIVE_IN_A_ROW = 4  # then one batch job, if any waits
CRASH_KIND = "WorkerCrashed"  # what is stored in place of the class of an error
MAX_ERROR_CHARACTERS = 2000  # messages may quote what a client or a remote server sent
MAX_CLOCK_STEP_S = 5  # a clock that is set back by more moves what is due with it

KEEP_S = 7 * DAY_S  # record and result, after the end
WEBHOOK_KEEP_S = DAY_S  # at least, while a webhook is pending
DEAD_AUDIO_S = DAY_S  # uploaded audio of a dead job in Redis, where it can be retried

WEBHOOK_S = 10.0  # for the receiver to respond
WEBHOOK_RETRY_S = 7.0  # before the second attempt


@dataclass(frozen=True)
class RetryPolicy:
    max_attempts: int = MAX_ATTEMPTS
    max_crashes: int = MAX_CRASHES
    retry_s: float = RETRY_S

    def after_failure(self, error: ChoralError, attempts: int, crashes: int) -> tuple[State, float]:
        """The state after a failed run, and how long the job waits if that is `waiting`."""
        n_failures = attempts - crashes
        if not error.is_retryable:
            return "failed", 0.0
        if n_failures >= self.max_attempts:
            return "dead", 0.0
        return "waiting", backoff_s(n_failures, self.retry_s, max(self.retry_s, MAX_RETRY_S))


def error_fields(error: ChoralError) -> tuple[str, str]:
    """What is stored of an error: its text, and the name of its class."""
    return str(error)[:MAX_ERROR_CHARACTERS].encode(errors="replace").decode(), type(error).__name__


def lua_constants() -> str:
    """The numbers that scripts use, as Lua definitions."""
    ended = ", ".join(f"{state} = true" for state in ENDED)
    numbers = {"WEBHOOK_KEEP_S": WEBHOOK_KEEP_S, "DEAD_AUDIO_S": DEAD_AUDIO_S, "MAX_CLOCK_STEP_S": MAX_CLOCK_STEP_S}
    texts = [f"local ENDED = {{{ended}}}", f"local CRASH_KIND = '{CRASH_KIND}'"]
    return "\n".join([*texts, *(f"local {name} = {value}" for name, value in numbers.items())])
