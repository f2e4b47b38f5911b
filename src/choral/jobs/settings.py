"""Settings of producers and workers: frozen, checked, and with the sentence that the command's help prints."""

from __future__ import annotations

from dataclasses import dataclass

from choral.checks import check_fields
from choral.errors import UsageError
from choral.jobs.request import DAY_S
from choral.types import option

MIB = 2**20
NAMESPACE_HELP = "prefix of all keys: queues of different names do not see each other"
LARGEST_BLOB_BYTES = 500 * MIB  # Redis holds 512 MiB in one value


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    namespace: str = option("choral", NAMESPACE_HELP)
    keep_s: int = option(7 * DAY_S, "how long record and result of a job stay after it has ended", metavar="SECONDS")
    inline_bytes: int = option(MIB, "audio up to this size lies in the job's record", metavar="BYTES")
    blob_bytes: int = option(256 * MIB, "larger audio goes through Redis as a blob, up to this size", metavar="BYTES")
    blob_keep_s: int = option(7 * DAY_S, "how long a blob waits for its job to be done", metavar="SECONDS")
    queue_limit: int = option(100_000, "most jobs of one priority that may wait; more are refused")

    def __post_init__(self) -> None:
        check_fields(self)
        _require("keep_s", self.keep_s, 60, 3650 * DAY_S)
        _require("inline_bytes", self.inline_bytes, 0, 16 * MIB)
        _require("blob_bytes", self.blob_bytes, 0, LARGEST_BLOB_BYTES)
        _require("blob_keep_s", self.blob_keep_s, 60, 3650 * DAY_S)
        _require("queue_limit", self.queue_limit, 1, 10**9)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    namespace: str = option("choral", NAMESPACE_HELP)
    batch_size: int = option(
        0, "jobs in the engine at once; with CTranslate2, jobs that enter it together; 0: what suits the device"
    )
    batch_wait_s: float = option(
        0.5, "how long a batch stays open for stragglers; with torch jobs do not wait for it", metavar="SECONDS"
    )
    prep_ahead: int = option(0, "jobs that are prepared before the engine has room for them; 0: as many as batch_size")
    claim_after_s: float = option(
        60.0, "take over the jobs of a worker that was not heard of for so long", metavar="SECONDS"
    )
    max_attempts: int = option(4, "tries of a job that fails for a reason that may pass, before it is dead")
    max_crashes: int = option(2, "workers that may end without a word with a job in hand, before it is dead")
    retry_s: float = option(5.0, "pause before the second try; it doubles with each one after", metavar="SECONDS")
    drain_s: float = option(
        30.0, "after SIGTERM, time to finish what is under way; the rest is handed back", metavar="SECONDS"
    )
    webhook_s: float = option(10.0, "time that the receiver of a webhook has to answer", metavar="SECONDS")
    webhook_retry_s: float = option(
        7.0,
        "pause before a webhook's second try; with ten tries, each pause twice the last, an hour",
        metavar="SECONDS",
    )
    result_link: str = option(
        "", "address of results with {id} in it, sent instead of results over 256 KiB (default: they are sent whole)"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        _require("batch_size", self.batch_size, 0, 4096)
        _require("batch_wait_s", self.batch_wait_s, 0, 60)
        _require("prep_ahead", self.prep_ahead, 0, 4096)
        _require("claim_after_s", self.claim_after_s, 2, DAY_S)
        _require("max_attempts", self.max_attempts, 1, 1000)
        _require("max_crashes", self.max_crashes, 1, 1000)
        _require("retry_s", self.retry_s, 0.01, DAY_S)
        _require("drain_s", self.drain_s, 0, DAY_S)
        _require("webhook_s", self.webhook_s, 0.1, 300)
        _require("webhook_retry_s", self.webhook_retry_s, 0.01, 3600)
        if self.result_link and "{id}" not in self.result_link:
            raise UsageError(f"result_link is {self.result_link!r}; it must have {{id}} where the job's id goes")


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it must be a number from {low} to {high}")
