"""Places for jobs whose audio is being downloaded: they are bounded apart from the jobs that have their audio.

A download can last minutes without using the CPU or the engine. Counted with the other jobs, a few slow servers would
keep a process from taking jobs that are ready to run.
"""

from __future__ import annotations

from collections import Counter

from choral.jobs.active_job import ActiveJob
from choral.remote.urls import url_host


class FetchSlots:
    def __init__(self, n_slots: int, n_per_host: int) -> None:
        self._n_slots, self._n_per_host = n_slots, n_per_host
        self._host_of: dict[str, str] = {}  # by job id

    def __len__(self) -> int:
        return len(self._host_of)

    def __contains__(self, job: ActiveJob) -> bool:
        return job.id in self._host_of

    @property
    def is_full(self) -> bool:
        return len(self._host_of) >= self._n_slots

    @property
    def full_hosts(self) -> set[str]:
        return {host for host, n_jobs in Counter(self._host_of.values()).items() if n_jobs >= self._n_per_host}

    def take(self, job: ActiveJob) -> bool:
        """Whether the job may start: it has its audio, or gets a place until `release`."""
        if job.request.audio.kind != "url":
            return True
        host = url_host(job.request.audio.location)
        if self.is_full or host in self.full_hosts:
            return False
        self._host_of[job.id] = host
        return True

    def release(self, job: ActiveJob) -> None:
        """May be repeated."""
        self._host_of.pop(job.id, None)
