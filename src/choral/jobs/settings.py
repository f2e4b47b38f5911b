"""Settings of job clients and workers: frozen and validated, with the help text that the command line prints."""

from __future__ import annotations

from dataclasses import dataclass

from choral.errors import UsageError
from choral.jobs.job_states import DAY_S, KEEP_S, MAX_ATTEMPTS, MAX_CRASHES, RETRY_S, WEBHOOK_RETRY_S, WEBHOOK_S
from choral.validation import check_fields, option

MIB = 2**20
NAMESPACE_HELP = "prefix of all Redis keys; separates independent queues"
MAX_BLOB_BYTES = 500 * MIB  # Redis limits a value to 512 MiB


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    namespace: str = option("choral", NAMESPACE_HELP)
    keep_s: int = option(
        KEEP_S, "how long a finished job and its result are kept", metavar="SECONDS", within=(60, 3650 * DAY_S)
    )
    inline_bytes: int = option(
        MIB, "audio up to this size is stored in the job's record", metavar="BYTES", within=(0, 16 * MIB)
    )
    blob_bytes: int = option(
        256 * MIB,
        "larger audio, up to this size, is stored in Redis as a blob of its own",
        metavar="BYTES",
        within=(0, MAX_BLOB_BYTES),
    )
    blob_keep_s: int = option(
        7 * DAY_S, "how long a blob waits for its job to run", metavar="SECONDS", within=(60, 3650 * DAY_S)
    )
    queue_limit: int = option(100_000, "waiting jobs per priority; more are refused", within=(1, 10**9))

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    namespace: str = option("choral", NAMESPACE_HELP)
    batch_size: int = option(0, "concurrent jobs in the engine; 0: chosen for the device", within=(0, 4096))
    batch_wait_s: float = option(
        0.5,
        "how long a batch, which is a line of the log, is open to more jobs; they start at once",
        metavar="SECONDS",
        within=(0, 60),
    )
    prep_ahead: int = option(0, "jobs taken ahead of the engine; 0: as many as batch_size", within=(0, 4096))
    claim_after_s: float = option(
        60.0,
        "take over the jobs of a worker that sent no heartbeat for this long",
        metavar="SECONDS",
        within=(2, DAY_S),
    )
    max_attempts: int = option(
        MAX_ATTEMPTS, "attempts of a job with retryable failures before it is dead", within=(1, 1000)
    )
    max_crashes: int = option(MAX_CRASHES, "worker crashes during a job before it is dead", within=(1, 1000))
    retry_s: float = option(
        RETRY_S, "delay before the first retry; doubles with each retry", metavar="SECONDS", within=(0.01, DAY_S)
    )
    drain_s: float = option(
        30.0,
        "time to finish running jobs after SIGTERM; the rest go back to the queue",
        metavar="SECONDS",
        within=(0, DAY_S),
    )
    webhook_s: float = option(
        WEBHOOK_S, "time limit for a webhook's receiver to respond", metavar="SECONDS", within=(0.1, 300)
    )
    webhook_retry_s: float = option(
        WEBHOOK_RETRY_S,
        "delay before a webhook's first retry; doubles each time, ten attempts in about an hour",
        metavar="SECONDS",
        within=(0.01, 3600),
    )
    result_link: str = option(
        "", "URL of results, with {id} in it, sent in place of results over 256 KiB (default: send every result whole)"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.result_link and "{id}" not in self.result_link:
            raise UsageError(f"result_link is {self.result_link!r}; it must contain {{id}} in place of the job's id")
