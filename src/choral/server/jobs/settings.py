"""Settings of the jobs over HTTP: frozen, checked, and with the sentence that the command's help prints."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from choral.checks import check_fields
from choral.errors import UsageError
from choral.types import option

DAY_S = 86_400.0
REDIS, FROM_ENVIRONMENT = "CHORAL_REDIS", "env"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    redis: str = option(
        "",
        "send jobs to the workers on this Redis, redis://HOST:PORT (default: they run here); "
        "env is the one in CHORAL_REDIS, since others can see command lines",
        metavar="URL",
    )
    namespace: str = option("choral", "prefix of all keys in Redis: queues of different names do not see each other")
    data: str = option(
        "",
        "folder where jobs are kept (default: one for each port in the user's data folder; "
        "with --port 0 a temporary one, gone at the end)",
        metavar="FOLDER",
    )
    job_limit: int = option(1000, "jobs that may wait or run; more are refused")
    keep_s: int = option(7 * 86_400, "how long a job and its result stay after it has ended", metavar="SECONDS")
    job_retry_s: float = option(
        5.0, "pause before the second try of a job; it doubles with each one after", metavar="SECONDS"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        self.redis_url  # noqa: B018  what is missing is better known now
        _require("job_limit", self.job_limit, 1, 10**7)
        _require("keep_s", self.keep_s, 60, 3650 * DAY_S)
        _require("job_retry_s", self.job_retry_s, 0.01, DAY_S)

    @property
    def redis_url(self) -> str:
        if self.redis != FROM_ENVIRONMENT:
            return self.redis
        if not os.environ.get(REDIS):
            raise UsageError(f"--redis env needs the address of a Redis in {REDIS}: redis://HOST:PORT")
        return os.environ[REDIS]

    def folder(self, port: int) -> Path | None:
        """None: there is none that the next start would find again."""
        if self.data:
            return Path(self.data)
        return data_root() / f"server-{port}" if port else None


def data_root() -> Path:
    """Where this user's programs keep what must not be lost."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "choral"


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}")
