"""Settings of jobs over HTTP: frozen and validated, with the help text that the command line prints."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from choral.errors import UsageError
from choral.types import option
from choral.validation import check_fields

DAY_S = 86_400.0
REDIS, FROM_ENVIRONMENT = "CHORAL_REDIS", "env"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    redis: str = option(
        "",
        "send jobs to the workers on this Redis, redis://HOST:PORT (default: run them in this server); "
        "env reads the address from CHORAL_REDIS, which keeps passwords off the command line",
        metavar="URL",
    )
    namespace: str = option("choral", "prefix of all Redis keys; separates independent queues")
    data: str = option(
        "",
        "folder that stores jobs (default: one per port in the user's data folder; "
        "with --port 0 a temporary folder, deleted on exit)",
        metavar="FOLDER",
    )
    job_limit: int = option(1000, "jobs that may be waiting or running; more are refused", within=(1, 10**7))
    keep_s: int = option(
        7 * 86_400,
        "how long a finished job and its result are kept",
        metavar="SECONDS",
        within=(60, 3650 * 86_400),
    )
    job_retry_s: float = option(
        5.0, "delay before the first retry of a job; doubles with each retry", metavar="SECONDS", within=(0.01, DAY_S)
    )

    def __post_init__(self) -> None:
        check_fields(self)
        self.redis_url  # noqa: B018  raises now if CHORAL_REDIS is missing

    @property
    def redis_url(self) -> str:
        if self.redis != FROM_ENVIRONMENT:
            return self.redis
        if not os.environ.get(REDIS):
            raise UsageError(f"--redis env needs the address of a Redis in {REDIS}: redis://HOST:PORT")
        return os.environ[REDIS]

    def folder(self, port: int) -> Path | None:
        """The folder that the next start on this port finds again; None with port 0."""
        if self.data:
            return Path(self.data)
        return data_root() / f"server-{port}" if port else None


def data_root() -> Path:
    """The user's folder for persistent application data."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "choral"
