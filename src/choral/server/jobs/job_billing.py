"""Whose account a job's audio goes on: its id begins with the mark of its key, so a restart forgets no one.

A job that runs here is charged before it is transcribed and may be refused; one that a worker has is charged when the
worker says how long it is, and what it then has too much is missing from the next.
"""

from __future__ import annotations

import hashlib

from choral.server.api_keys import ApiKey, ApiKeyStore
from choral.server.quota import KeyQuotas

MARK_LENGTH = 10


def owner_prefix(name: str) -> str:
    """What the ids of a key's jobs begin with."""
    return hashlib.sha256(name.encode()).hexdigest()[:MARK_LENGTH] + "-"


class JobBilling:
    def __init__(self, keys: ApiKeyStore, quotas: KeyQuotas) -> None:
        self._keys, self._quotas = keys, quotas

    @property
    def deferred(self) -> list[str]:
        """Jobs of an earlier start whose length was not known yet."""
        return [entry.id for entry in self._quotas.deferred]

    def charge(self, job_id: str, duration_s: float) -> None:
        """Raises the `ApiError` of a key that has used up its minutes. A job is charged once, however often it runs."""
        if (key := self._key(job_id)) is not None:
            self._quotas.of(key.name).charge(key, duration_s, job_id)

    def defer(self, job_id: str) -> bool:
        key = self._key(job_id)
        return key is not None and self._quotas.of(key.name).defer(key, job_id)

    def settle(self, job_id: str, duration_s: float) -> None:
        """What was owed; a job that ended before its length was known costs nothing."""
        if (key := self._key(job_id)) is not None:
            self._quotas.of(key.name).add(key, duration_s, job_id)

    def _key(self, job_id: str) -> ApiKey | None:
        """None also where the key was removed since."""
        return next((key for key in self._keys.all() if job_id.startswith(owner_prefix(key.name))), None)
