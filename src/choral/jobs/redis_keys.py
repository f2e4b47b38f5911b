"""All Redis keys. Lua scripts get the same names as variables and functions.

All keys share one hash tag, `{choral}:…`, so that a Redis cluster keeps them on one node and a script may use several.
Installations that share a Redis use different namespaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from choral.errors import UsageError
from choral.options import Priority

GROUP = "workers"  # the consumer group of both queues

_SINGLE = {
    "delayed": "sorted set: jobs that wait for a retry, by due time",
    "webhooks": "sorted set: jobs with an undelivered webhook, by due time",
    "dead": "sorted set: the dead-letter list, by end time",
    "index": "sorted set: all jobs, by submission time",
    "expiries": "sorted set: ended jobs, by expiry time",
    "events": "stream: recent state changes",
    "clock": "string: the time of the last housekeeping",
    "workers": "sorted set: workers, by last heartbeat",
}
_PER_ID = {
    "queue": "stream: the queue of a priority",
    "job": "hash: the record of a job",
    "result": "string: the transcript of a job, as JSON",
    "blob": "string: audio too large for the record",
    "worker": "string: the status of a worker, as JSON",
}


@dataclass(frozen=True)
class RedisKeys:
    namespace: str = "choral"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", self.namespace):
            raise UsageError(f"namespace is {self.namespace!r}; it must be 1 to 64 letters, digits, dots or dashes")

    @property
    def prefix(self) -> str:
        """The only key that scripts are given; they derive the others from it."""
        return f"{{{self.namespace}}}:"

    def queue(self, priority: Priority) -> str:
        return f"{self.prefix}queue:{priority}"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}job:{job_id}"

    def result(self, job_id: str) -> str:
        return f"{self.prefix}result:{job_id}"

    def blob(self, name: str) -> str:
        return f"{self.prefix}blob:{name}"

    def worker(self, name: str) -> str:
        return f"{self.prefix}worker:{name}"

    def single(self, name: str) -> str:
        assert name in _SINGLE, name
        return self.prefix + name


def lua_key_names() -> str:
    """Lua definitions of `delayed_key`, `job_key(id)` and so on, for the top of every script."""
    single = [f"local {name}_key = KEYS[1] .. '{name}'" for name in _SINGLE]
    per_id = [f"local function {name}_key(id) return KEYS[1] .. '{name}:' .. id end" for name in _PER_ID]
    return "\n".join([f"local GROUP = '{GROUP}'", *single, *per_id])
