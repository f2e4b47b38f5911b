"""Charges jobs to API keys: a job's id begins with a prefix of its owner, so its key is known after a restart too.

A job that runs in this server is charged before it is transcribed and may be refused. A job for a worker is charged
when the worker reports its duration; if that exceeds the quota, the excess counts against later requests.
"""

from __future__ import annotations

import hashlib

from choral.server.api_keys import ApiKey, ApiKeyStore
from choral.server.quota import KeyQuotas

PREFIX_LENGTH = 10


def owner_prefix(key_name: str) -> str:
    """What the ids of this key's jobs begin with."""
    return hashlib.sha256(key_name.encode()).hexdigest()[:PREFIX_LENGTH] + "-"


class JobBilling:
    def __init__(self, keys: ApiKeyStore, quotas: KeyQuotas) -> None:
        self._keys, self._quotas = keys, quotas

    @property
    def deferred(self) -> list[str]:
        """Jobs of an earlier run of the server whose duration was not known yet."""
        return [entry.id for entry in self._quotas.deferred]

    def charge(self, job_id: str, duration_s: float) -> None:
        """Raises the `ApiError` of an exhausted quota. A job is charged once, however often it runs."""
        if (key := self._key(job_id)) is not None:
            self._quotas.of(key.name).charge(key, duration_s, job_id)

    def defer(self, job_id: str) -> bool:
        """Record a job whose duration is not known yet; False: its key is not charged for audio."""
        key = self._key(job_id)
        return key is not None and self._quotas.of(key.name).defer(key, job_id)

    def settle(self, job_id: str, duration_s: float) -> None:
        """Charge a deferred job; one that ended before its duration was known costs nothing."""
        if (key := self._key(job_id)) is not None:
            self._quotas.of(key.name).add(key, duration_s, job_id)

    def _key(self, job_id: str) -> ApiKey | None:
        """None also if the key was removed since."""
        return next((key for key in self._keys.all() if job_id.startswith(owner_prefix(key.name))), None)
