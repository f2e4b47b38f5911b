"""A server under a mixed load for minutes: what it takes from the machine, sample by sample, and what stays behind.

Before it begins every slot was used and every file sent once, and its first part, two minutes of a long soak, is not
judged: so long things fill up that do so once, as caches do. From then on memory and open files must stay as they are;
when the load has ended no temporary file may be left.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from choral.bench import process_tree
from choral.bench.clips import AudioClip
from choral.bench.mixed_clients import ClientCounts, MixedClients, write_mix
from choral.bench.server_process import ServerProcess

SAMPLE_S, SETTLE_S, SETTLE_SHARE = 10.0, 120.0, 0.2  # of a short soak a fifth is for settling
SAMPLES_AT_LEAST = 10
LEVEL = 6  # samples
FILES, FEWEST_FILES = 128, 10
QUIET_S = 3.0  # for what clients left behind to end
MEMORY_BAR = 0.05
FILES_BAR = 8  # open files more or less


@dataclass(frozen=True)
class SoakSettings:
    duration_s: float
    n_clients: int

    @property
    def settle_s(self) -> float:
        return min(SETTLE_S, self.duration_s * SETTLE_SHARE)

    @property
    def n_files(self) -> int:
        """Of a long soak more than the engine's cache keeps; a short one comes to few of them anyhow."""
        return min(FILES, max(FEWEST_FILES, round(self.duration_s)))

    @property
    def sample_s(self) -> float:
        return min(SAMPLE_S, self.duration_s / SAMPLES_AT_LEAST)


@dataclass(frozen=True)
class ResourceReading:
    at_s: float
    memory_bytes: int
    open_files: int
    temp_files: int
    tally: ClientCounts


@dataclass(frozen=True)
class SoakReport:
    settle_s: float
    samples: tuple[ResourceReading, ...]  # under load
    idle_before: ResourceReading
    idle_after: ResourceReading

    @property
    def tally(self) -> ClientCounts:
        return self.idle_after.tally

    @property
    def memory_drift(self) -> float:
        """The farthest that memory went from where it was after settling, as a share of that.

        By medians of six samples, of a long soak a minute: a single one has the step in it that is just under way.
        """
        settled = self._settled([sample.memory_bytes for sample in self.samples])
        levels = [statistics.median(settled[start : start + LEVEL]) for start in range(0, len(settled), LEVEL)]
        return max(abs(level / levels[0] - 1) for level in levels)

    @property
    def open_files_drift(self) -> int:
        """How many more are open in the last third than in the first after settling, by their medians."""
        settled = self._settled([sample.open_files for sample in self.samples])
        third = max(1, len(settled) // 3)
        return round(statistics.median(settled[-third:]) - statistics.median(settled[:third]))

    def verdicts(self) -> list[tuple[str, bool]]:
        tally = self.tally
        kept = self.idle_after.open_files - self.idle_before.open_files
        return [
            (f"memory within {MEMORY_BAR:.0%} after {self.settle_s:.0f} s", self.memory_drift <= MEMORY_BAR),
            ("no good request failed", tally.n_good > 0 and not tally.failures),
            ("every bad one was refused as it should", not tally.n_bad_taken),
            ("no temporary file left", self.idle_after.temp_files <= self.idle_before.temp_files),
            ("open files flat", self.open_files_drift <= FILES_BAR and kept <= FILES_BAR),
        ]

    def _settled(self, values: Sequence[int]) -> list[int]:
        found = [value for sample, value in zip(self.samples, values, strict=True) if sample.at_s >= self.settle_s]
        return found or list(values[-1:])


def measure(
    plan: SoakSettings, sounds: Sequence[AudioClip], server: ServerProcess, folder: Path, tell: Callable[[str], None]
) -> SoakReport:
    tell(f"writing {plan.n_files} files to send …")
    files = write_mix(sounds, folder / "mix", plan.n_files)
    with MixedClients(server.url, files, plan.n_clients) as crowd:
        tell("every slot and every file once, so that what fills up is full …")
        crowd.warm_up()
        time.sleep(QUIET_S)
        before = _look(server, 0.0, crowd.tally())
        started_s = time.monotonic()
        crowd.start()
        samples: list[ResourceReading] = []
        while (at_s := (len(samples) + 1) * plan.sample_s) <= plan.duration_s:
            time.sleep(max(0.0, started_s + at_s - time.monotonic()))
            samples.append(_look(server, at_s, crowd.tally()))
            tell(shown(samples[-1]))
        crowd.stop()
        time.sleep(QUIET_S)
        after = _look(server, time.monotonic() - started_s, crowd.tally())
    tell(f"idle again: {shown(after)}")
    return SoakReport(plan.settle_s, tuple(samples), before, after)


def shown(sample: ResourceReading) -> str:
    tally = sample.tally
    return (
        f"{sample.at_s:.0f} s: {sample.memory_bytes / 1e6:,.0f} MB, {sample.open_files} open files, "
        f"{sample.temp_files} temporary, {tally.n_good} answered, {tally.n_gone} gone, {tally.n_bad} refused, "
        f"{len(tally.failures)} failed"
    )


def _look(server: ServerProcess, at_s: float, tally: ClientCounts) -> ResourceReading:
    server.require_alive()
    return ResourceReading(
        at_s=at_s,
        memory_bytes=process_tree.memory_bytes(server.pid),
        open_files=process_tree.n_open_files(server.pid),
        temp_files=process_tree.n_files_in(server.pid, server.spool),
        tally=tally,
    )
