"""Many systems on the same requests, fairly: each in its own process, one at a time, round after round in turn.

A busy moment of the machine so hits all alike, and medians over the rounds are compared. Where a family has several
settings, all of them run a shorter round first, and the fastest goes on. A system that fails is left out with a note.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from choral.bench.clips import AudioClip, write_audio_files
from choral.bench.load_generator import RoundResult
from choral.bench.process import PeerFailed, PeerProcess
from choral.bench.systems.spec import PeerConfig

N_WARM_UP = 2  # requests, before anything is timed
REST_S = 0.3  # threads of the system before spin for a moment when they have nothing to do
BUSY_SHARE = 1.25  # of the cores: what the benchmark itself has just done counts too
WARM_UP_SEED, HEAT_SEED = 1_000_000, 1_000_001

Tell = Callable[[str], None]


@dataclass
class PeerResult:
    """What one system did in all rounds."""

    spec: PeerConfig
    runs: list[RoundResult] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def wall_s(self) -> float:
        return statistics.median(run.wall_s for run in self.runs)


@dataclass
class RoundRobin:
    """The work folder, and what is told on the way."""

    folder: Path
    tell: Tell = lambda line: None
    notes: list[str] = field(default_factory=list)

    def qualify(self, specs: Sequence[PeerConfig], sounds: Sequence[AudioClip]) -> list[PeerConfig]:
        """The fastest setting of each family; families of one setting go on untried."""
        fastest: list[PeerConfig] = []
        for _, group in groupby(specs, key=lambda spec: spec.family):
            settings = list(group)
            if len(settings) == 1:
                fastest += settings
                continue
            standings = [found for spec in settings if (found := self._try(spec, sounds)) is not None]
            fastest += [min(standings, key=lambda standing: standing.wall_s).spec] if standings else []
        return fastest

    def compete(self, specs: Sequence[PeerConfig], sounds: Sequence[AudioClip], n_rounds: int) -> list[PeerResult]:
        """All systems stay loaded, and take turns."""
        self.notes += busy_notes()
        with ExitStack() as stack:
            entered = [(spec, stack.enter_context(self._entered(spec, sounds))) for spec in specs]
            standings = {process: PeerResult(spec) for spec, process in entered if process is not None}
            for round_index in range(n_rounds):
                for process, standing in list(standings.items()):
                    if not self._take_turn(process, standing, sounds, round_index):
                        del standings[process]
            return list(standings.values())

    def _try(self, spec: PeerConfig, sounds: Sequence[AudioClip]) -> PeerResult | None:
        standing = PeerResult(spec)
        with self._entered(spec, sounds) as process:
            if process is None or not self._take_turn(process, standing, sounds, HEAT_SEED):
                return None
        return standing

    @contextmanager
    def _entered(self, spec: PeerConfig, sounds: Sequence[AudioClip]) -> Iterator[PeerProcess | None]:
        """The system, loaded and warm; None where that fails."""
        try:
            process = PeerProcess(spec)
        except PeerFailed as error:
            self._leave_out(spec, error)
            yield None
            return
        try:
            process.run(write_audio_files(sounds[:N_WARM_UP], self.folder / "warm-up", WARM_UP_SEED))
        except PeerFailed as error:
            self._leave_out(spec, error)
            yield None
        else:
            yield process
        finally:
            process.close()

    def _take_turn(self, process: PeerProcess, standing: PeerResult, sounds: Sequence[AudioClip], seed: int) -> bool:
        requests = write_audio_files(sounds, self.folder / "round", seed)
        time.sleep(REST_S)
        try:
            standing.runs.append(process.run(requests))
        except PeerFailed as error:
            self._leave_out(standing.spec, error)
            return False
        standing.peak_bytes = process.peak_bytes
        audio_s = sum(sound.duration_s for sound in sounds)
        spent_s = standing.runs[-1].wall_s
        self.tell(f"{standing.spec.name}: {spent_s:.2f} s, {audio_s / spent_s:.1f} × real time")
        return True

    def _leave_out(self, spec: PeerConfig, error: PeerFailed) -> None:
        note = f"{spec.name} is not shown: {error}"
        self.notes.append(note)
        self.tell(note)


def busy_notes() -> list[str]:
    """What others do at the same time makes every figure worse, and not all alike."""
    if not hasattr(os, "getloadavg"):
        return []
    load, n_cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load <= BUSY_SHARE * n_cpus:
        return []
    return [f"this machine was busy (load {load:.1f} on {n_cpus} cores): measure again when it is quiet"]
