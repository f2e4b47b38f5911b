"""What running jobs needs of the store that keeps them: `WorkerQueue` (Redis) and `LocalQueue` (SQLite).

Every method is one transition that may be repeated. One that fails because the store does not work is repeated by the
store's `StoreRetry`; a job whose record cannot be read raises `UsageError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from choral.errors import ChoralError
from choral.jobs.active_job import ActiveJob
from choral.jobs.job_states import State
from choral.jobs.record import JobRecord, WebhookAttempt
from choral.remote.urls import url_host
from choral.transcript import Transcript

T = TypeVar("T")


@dataclass(frozen=True)
class DueWebhook:
    job_id: str
    round: str  # how often the job was retried by hand, plus one
    callback: str

    @property
    def host(self) -> str:
        return url_host(self.callback)


@dataclass(frozen=True)
class Delivery:
    """The attempts so far, the last one included, and what comes next."""

    attempts: tuple[WebhookAttempt, ...]
    outcome: str  # delivered, failed, or pending: attempt it again after `delay_s`
    delay_s: float


class StoreRetry(Protocol):
    async def call(self, action: Callable[[], Awaitable[T]]) -> T:
        """Await `action()`, repeated with pauses until the store works."""


class QueueStore(Protocol):
    """Transitions return stored; duplicate or rejected if the job is no longer this process's; or dead."""

    async def succeed(self, job: ActiveJob, transcript: Transcript) -> str: ...

    async def fail(self, job: ActiveJob, state: State, error: ChoralError | None, delay_s: float = 0.0) -> str:
        """End the job in `state`, or let it wait `delay_s` for a retry if `state` is waiting."""

    async def requeue(self, job: ActiveJob, max_crashes: int = 0) -> str:
        """Put a running job back; no attempt is counted.

        With `max_crashes` the engine ended while it ran the job: a crash is counted, and the reply may be dead.
        """

    async def lease_webhooks(
        self, n_max: int, lease_s: float, may_send: Callable[[DueWebhook], bool]
    ) -> Sequence[DueWebhook]:
        """Due webhooks that `may_send` accepts; they become due again after `lease_s`."""

    async def ended_job(self, job_id: str) -> tuple[JobRecord, bytes | None] | None:
        """The record and the result; None: no such job, or it has not ended."""

    async def record_webhook(self, webhook: DueWebhook, delivery: Delivery) -> str: ...
