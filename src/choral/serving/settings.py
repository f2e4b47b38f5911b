"""Settings of a service's requests: concurrency, memory and limits on size, length and time."""

from __future__ import annotations

import os
from dataclasses import dataclass

from choral.common.processor import n_usable_cores
from choral.errors import UsageError
from choral.validation import check_fields, option

MIB, GIB, TIB = 2**20, 2**30, 2**40
HOUR_S, DAY_S, YEAR_S = 3_600.0, 86_400.0, 365 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    processes: int = option(0, "request processes; 0: one per CPU core", within=(0, 4096))
    fetches: int = option(32, "concurrent downloads", within=(1, 4096))
    fetches_per_host: int = option(0, "concurrent downloads from one host; 0: half of all downloads", within=(0, 4096))
    memory_bytes: int = option(
        512 * MIB, "decoded audio kept in memory; the rest stays on disk", metavar="BYTES", within=(0, 1024 * TIB)
    )
    max_bytes: int = option(2 * GIB, "largest accepted file", metavar="BYTES", within=(1, 1024 * TIB))
    max_audio_s: float = option(DAY_S, "longest accepted audio", metavar="SECONDS", within=(0.001, YEAR_S))
    fetch_timeout_s: float = option(
        600.0, "longest time a whole download may take", metavar="SECONDS", within=(0.001, YEAR_S)
    )
    stall_timeout_s: float = option(
        30.0,
        "longest pause in a download, and longest time for any 32 KiB of it",
        metavar="SECONDS",
        within=(0.001, YEAR_S),
    )
    decode_timeout_s: float = option(
        600.0, "longest time decoding a file may take", metavar="SECONDS", within=(0.001, YEAR_S)
    )
    interactive_timeout_s: float = option(
        120.0,
        "longest time a download, and then decoding, may take while a client waits for the answer",
        metavar="SECONDS",
        within=(0.001, YEAR_S),
    )
    roots: tuple[str, ...] = option((), "folders that paths may be read from, separated by commas", metavar="FOLDER,…")
    allowed_hosts: tuple[str, ...] = option(
        (), "non-public hosts and networks that audio may be fetched from, separated by commas", metavar="HOST,…"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for root in self.roots:
            if not os.path.isdir(root):
                raise UsageError(f"root {root!r} is not a readable folder: create it, or correct the path")

    @property
    def n_processes(self) -> int:
        return self.processes or n_usable_cores()
