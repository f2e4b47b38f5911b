"""Settings of the prep pool: how much at once, and how much of anything a caller may ask for."""

from __future__ import annotations

import os
from dataclasses import dataclass

from choral.checks import check_fields
from choral.errors import UsageError
from choral.types import option

MiB, GiB = 2**20, 2**30


@dataclass(frozen=True, kw_only=True)
class PrepSettings:
    processes: int = option(0, "processes that decode; 0: as many as the machine has cores")
    fetches: int = option(32, "downloads at once")
    memory_bytes: int = option(512 * MiB, "prepared sound in memory; the rest stays on disk", metavar="BYTES")
    max_bytes: int = option(2 * GiB, "largest file that is taken", metavar="BYTES")
    max_audio_s: float = option(24 * 3_600.0, "longest sound that is taken", metavar="SECONDS")
    fetch_timeout_s: float = option(600.0, "longest that a whole download may take", metavar="SECONDS")
    stall_timeout_s: float = option(30.0, "longest that a download may stand still", metavar="SECONDS")
    decode_timeout_s: float = option(600.0, "longest that decoding a file may take", metavar="SECONDS")
    roots: tuple[str, ...] = option(
        (), "folders below which paths may be read, separated by commas", metavar="FOLDER,…"
    )
    allowed_hosts: tuple[str, ...] = option(
        (), "hosts and networks that may be asked though they are not public, separated by commas", metavar="HOST,…"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.processes <= 4096:
            raise UsageError(f"processes is {self.processes!r}; it must be 0 (one for each core) or a count")
        if not 1 <= self.fetches <= 4096:
            raise UsageError(f"fetches is {self.fetches!r}; it must be a whole number from 1 to 4096")
        if self.memory_bytes < 0:
            raise UsageError(f"memory_bytes is {self.memory_bytes!r}; it must be a whole number from 0 up")
        for name in ("max_bytes", "max_audio_s", "fetch_timeout_s", "stall_timeout_s", "decode_timeout_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be a number above 0")
        for root in self.roots:
            if not os.path.isdir(root):
                raise UsageError(f"root {root!r} is not a folder that can be read: make it, or check its name")

    @property
    def n_processes(self) -> int:
        return self.processes or _n_cores()


def _n_cores() -> int:
    """Those that this process may use, where the system tells."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
