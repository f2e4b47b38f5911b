"""Every key in Redis, in one place; scripts get the same names as functions of Lua.

All keys share one hash tag, `{choral}:…`, so that a cluster keeps them together and one script may touch several. A
namespace of its own keeps two installations on one Redis apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from choral.errors import UsageError
from choral.types import Priority

GROUP = "workers"  # the consumer group of both queues

_SINGLE = {
    "delayed": "jobs that wait for their next try, by when it is due",
    "webhooks": "jobs whose webhook is to be sent, by when it is due",
    "dead": "the dead-letter list, by when each job ended",
    "index": "all jobs, by when they were submitted",
    "expiries": "jobs that have ended, by when they are forgotten",
    "events": "a short stream of jobs that changed their state",
    "workers": "workers, by when each was heard of last",
}
_FAMILIES = {
    "queue": "the stream of a priority class",
    "job": "the record of a job",
    "result": "the transcript of a job",
    "blob": "audio too large for its record",
    "worker": "what a worker says of itself",
}


@dataclass(frozen=True)
class RedisKeys:
    namespace: str = "choral"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", self.namespace):
            raise UsageError(f"namespace is {self.namespace!r}; it must be 1 to 64 letters, digits, dots or dashes")

    @property
    def prefix(self) -> str:
        """The only key a script is given: it finds the others from here."""
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


def lua_names() -> str:
    """`delayed_key` and `job_key(id)` and so on, for the top of every script."""
    single = [f"local {name}_key = KEYS[1] .. '{name}'" for name in _SINGLE]
    families = [f"local function {name}_key(own) return KEYS[1] .. '{name}:' .. own end" for name in _FAMILIES]
    return "\n".join([f"local GROUP = '{GROUP}'", *single, *families])
