"""A server under mixed load for minutes: its memory, open files and temporary files over time.

Before it starts, every slot is used and every file sent once, and the first part (two minutes of a long soak) is not
judged, so that caches can fill. After that memory and open files must stay flat; when the load has ended, no temporary
file may be left.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from choral.bench import process_tree
from choral.bench.clips import AudioClip
from choral.bench.mixed_clients import ClientCounts, MixedClients, write_files
from choral.bench.server_process import ServerProcess

SAMPLE_S, SETTLE_S, SETTLE_SHARE = 10.0, 120.0, 0.2  # a short soak settles for a fifth of its time
MIN_SAMPLES = 10
MIN_MEDIAN_OF = 6  # samples
MAX_FILES, MIN_FILES = 128, 10
QUIET_S = 3.0  # for abandoned requests to end
MAX_MEMORY_DRIFT = 0.05
MAX_OPEN_FILES_DRIFT = 8


@dataclass(frozen=True)
class SoakSettings:
    duration_s: float
    n_clients: int

    @property
    def settle_s(self) -> float:
        return min(SETTLE_S, self.duration_s * SETTLE_SHARE)

    @property
    def n_files(self) -> int:
        """For a long soak more than the engine's cache holds; a short one sends few of them."""
        return min(MAX_FILES, max(MIN_FILES, round(self.duration_s)))

    @property
    def sample_s(self) -> float:
        return min(SAMPLE_S, self.duration_s / MIN_SAMPLES)


@dataclass(frozen=True)
class ResourceSample:
    """The field names are those of the JSON line, as below."""

    at_s: float
    memory_bytes: int
    open_files: int
    temp_files: int
    tally: ClientCounts

    def __str__(self) -> str:
        counts = self.tally
        return (
            f"{self.at_s:.0f} s: {self.memory_bytes / 1e6:,.0f} MB, {self.open_files} open files, "
            f"{self.temp_files} temporary, {counts.n_good} answered, {counts.n_abandoned} abandoned, "
            f"{counts.n_bad} rejected, {len(counts.failures)} failed"
        )


@dataclass(frozen=True)
class SoakReport:
    settle_s: float
    samples: tuple[ResourceSample, ...]  # under load
    idle_before: ResourceSample
    idle_after: ResourceSample

    @property
    def counts(self) -> ClientCounts:
        return self.idle_after.tally

    @property
    def memory_drift(self) -> float:
        """The largest relative change of memory after settling: the median of each sixth, beside that of the first.

        A single minute tells which requests ran in it: their audio is several per cent of the memory.
        """
        settled = self._settled([sample.memory_bytes for sample in self.samples])
        size = max(MIN_MEDIAN_OF, len(settled) // 6)
        medians = [statistics.median(settled[start : start + size]) for start in range(0, len(settled), size)]
        return max(abs(median / medians[0] - 1) for median in medians)

    @property
    def open_files_drift(self) -> int:
        """Median of the last third after settling, minus that of the first third."""
        settled = self._settled([sample.open_files for sample in self.samples])
        third = max(1, len(settled) // 3)
        return round(statistics.median(settled[-third:]) - statistics.median(settled[:third]))

    def check_targets(self) -> list[tuple[str, bool]]:
        counts = self.counts
        n_kept_open = self.idle_after.open_files - self.idle_before.open_files
        is_memory_flat = self.memory_drift <= MAX_MEMORY_DRIFT
        is_flat = self.open_files_drift <= MAX_OPEN_FILES_DRIFT and n_kept_open <= MAX_OPEN_FILES_DRIFT
        return [
            (f"memory within {MAX_MEMORY_DRIFT:.0%} after {self.settle_s:.0f} s", is_memory_flat),
            ("no valid request failed", counts.n_good > 0 and not counts.failures),
            ("every invalid request was rejected", not counts.n_bad_taken),
            ("no temporary file left", self.idle_after.temp_files <= self.idle_before.temp_files),
            ("open files flat", is_flat),
        ]

    def _settled(self, values: Sequence[int]) -> list[int]:
        settled = [value for sample, value in zip(self.samples, values, strict=True) if sample.at_s >= self.settle_s]
        return settled or list(values[-1:])


def measure(
    settings: SoakSettings,
    clips: Sequence[AudioClip],
    server: ServerProcess,
    folder: Path,
    log: Callable[[str], None],
) -> SoakReport:
    log(f"writing {settings.n_files} audio files …")
    files = write_files(clips, folder / "files", settings.n_files)
    with MixedClients(server.url, files, settings.n_clients) as clients:
        log("warming up: all slots and all files once …")
        clients.command("warm up")
        time.sleep(QUIET_S)
        before = _sample(server, 0.0, clients.command("counts"))
        started_s = time.monotonic()
        clients.command("start")
        samples: list[ResourceSample] = []
        while (at_s := (len(samples) + 1) * settings.sample_s) <= settings.duration_s:
            time.sleep(max(0.0, started_s + at_s - time.monotonic()))
            samples.append(_sample(server, at_s, clients.command("counts")))
            log(str(samples[-1]))
        clients.command("stop")
        time.sleep(QUIET_S)
        after = _sample(server, time.monotonic() - started_s, clients.command("counts"))
    log(f"idle again: {after}")
    return SoakReport(settings.settle_s, tuple(samples), before, after)


def _sample(server: ServerProcess, at_s: float, counts: ClientCounts) -> ResourceSample:
    server.require_alive()
    return ResourceSample(
        at_s=at_s,
        memory_bytes=process_tree.memory_bytes(server.pid),
        open_files=process_tree.n_open_files(server.pid),
        temp_files=process_tree.n_files_in(server.pid, server.temp_folder),
        tally=counts,
    )
