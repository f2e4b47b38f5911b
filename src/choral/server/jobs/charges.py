"""Whose account a job's audio goes on: its id begins with the mark of its key, so a restart forgets no one.

A job that runs here is charged before it is transcribed and may be refused; one that a worker has is charged when the
worker says how long it is, and what it then has too much is missing from the next.
"""

from __future__ import annotations

import hashlib

from choral.server.keys import ApiKey, KeyRing
from choral.server.limits import Meters

MARK_LENGTH = 10


def mark_of(name: str) -> str:
    """What the ids of a key's jobs begin with."""
    return hashlib.sha256(name.encode()).hexdigest()[:MARK_LENGTH] + "-"


class JobCharges:
    def __init__(self, keys: KeyRing, meters: Meters) -> None:
        self._keys, self._meters = keys, meters

    @property
    def owed(self) -> list[str]:
        """Jobs of an earlier start whose length was not known yet."""
        return [entry.id for entry in self._meters.owed]

    def charge(self, job_id: str, duration_s: float) -> None:
        """Raises the `Problem` of a key that has used up its minutes. A job is charged once, however often it runs."""
        if (key := self._key(job_id)) is not None:
            self._meters.of(key.name).charge(key, duration_s, job_id)

    def owe(self, job_id: str) -> bool:
        key = self._key(job_id)
        return key is not None and self._meters.of(key.name).owe(key, job_id)

    def settle(self, job_id: str, duration_s: float) -> None:
        """What was owed; a job that ended before its length was known costs nothing."""
        if (key := self._key(job_id)) is not None:
            self._meters.of(key.name).add(key, duration_s, job_id)

    def _key(self, job_id: str) -> ApiKey | None:
        """None also where the key was removed since."""
        return next((key for key in self._keys.all() if job_id.startswith(mark_of(key.name))), None)
