"""Settings of a request pool: how many processes, requests and downloads at once, memory, and limits on inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import MAX_MEMORY_S
from choral.audio.samples import S16_BYTES
from choral.serving.request_inputs import InputLimits
from choral.serving.settings import ServingSettings

N_LANES = 2


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    n_processes: int
    n_requests: int  # in a process at once, in each of the two lanes, besides downloads
    n_kept: int = 0  # processes that are started before there are requests for them, and replaced when they end
    fetches: int = 32  # in each lane
    fetches_per_host: int = 0  # 0: half of all
    memory_bytes: int = int(MAX_MEMORY_S) * SAMPLE_RATE * S16_BYTES  # of decoded audio; the rest goes to files
    limits: InputLimits = field(default_factory=InputLimits)

    @classmethod
    def of(cls, prep: ServingSettings, requests_at_once: int, *, keeps_all: bool) -> PoolSettings:
        """`keeps_all`: processes start before the requests that need them, for an engine that would wait for them.

        Otherwise one does, which requests prefer while others start.
        """
        n_processes = min(prep.n_processes, requests_at_once)
        return cls(
            n_processes=n_processes,
            n_requests=-(-requests_at_once // n_processes),
            n_kept=n_processes if keeps_all else 1,
            fetches=prep.fetches,
            fetches_per_host=prep.fetches_per_host,
            memory_bytes=prep.memory_bytes,
            limits=InputLimits.of(prep),
        )

    @property
    def n_fetches_per_host(self) -> int:
        return self.fetches_per_host or max(1, self.fetches // 2)

    @property
    def max_memory_s(self) -> float:
        """Of one recording: an equal share of the memory for each that may be open."""
        n_recordings = N_LANES * (self.n_processes * self.n_requests + self.fetches)
        return self.memory_bytes / n_recordings / S16_BYTES / SAMPLE_RATE
