"""Runs several systems on the same requests, each in its own process, round by round in turn.

Other load on the machine thus affects all alike; medians over the rounds are compared. Where a family has several
settings, each runs a shorter round first, and only the fastest takes part. A system that fails is left out with a note.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from choral.bench.clips import AudioClip, write_audio_files
from choral.bench.json_process import ProcessFailed
from choral.bench.load_generator import RoundResult
from choral.bench.peer_process import PEER_MODULE, PeerProcess
from choral.bench.peers import PeerConfig
from choral.bench.process_tree import busy_note

N_WARM_UP = 2  # requests before the first timed round
REST_S = 0.3  # idle threads of the previous system keep spinning for a moment
WARM_UP_SEED, TRIAL_SEED = 1_000_000, 1_000_001


@dataclass
class PeerResult:
    """All rounds of one system."""

    config: PeerConfig
    rounds: list[RoundResult] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def wall_s(self) -> float:
        return statistics.median(result.wall_s for result in self.rounds)


@dataclass
class RoundRobin:
    folder: Path  # for the audio files
    log: Callable[[str], None] = lambda line: None
    module: str = PEER_MODULE
    notes: list[str] = field(default_factory=list)

    def pick_fastest(self, configs: Sequence[PeerConfig], clips: Sequence[AudioClip]) -> list[PeerConfig]:
        """The fastest setting of each family; a family with one setting is not tried."""
        fastest: list[PeerConfig] = []
        for _, group in groupby(configs, key=lambda config: config.family):
            settings = list(group)
            if len(settings) == 1:
                fastest += settings
                continue
            results = [result for config in settings if (result := self._try(config, clips)) is not None]
            fastest += [min(results, key=lambda result: result.wall_s).config] if results else []
        return fastest

    def run(self, configs: Sequence[PeerConfig], clips: Sequence[AudioClip], n_rounds: int) -> list[PeerResult]:
        """All systems stay loaded and take turns."""
        self.notes += busy_note()
        with ExitStack() as stack:
            opened = [(config, stack.enter_context(self._opened(config, clips))) for config in configs]
            results = {process: PeerResult(config) for config, process in opened if process is not None}
            for seed in range(n_rounds):
                for process, result in list(results.items()):
                    if not self._run_round(process, result, clips, seed):
                        del results[process]
            return list(results.values())

    def _try(self, config: PeerConfig, clips: Sequence[AudioClip]) -> PeerResult | None:
        result = PeerResult(config)
        with self._opened(config, clips) as process:
            if process is None or not self._run_round(process, result, clips, TRIAL_SEED):
                return None
        return result

    @contextmanager
    def _opened(self, config: PeerConfig, clips: Sequence[AudioClip]) -> Iterator[PeerProcess | None]:
        """The system, loaded and warmed up; None where that fails."""
        with ExitStack() as stack:
            try:
                process = PeerProcess(config, self.module)
                stack.callback(process.close)
                process.run(write_audio_files(clips[:N_WARM_UP], self.folder / "warm-up", WARM_UP_SEED))
            except ProcessFailed as error:
                self._leave_out(config, error)
                yield None
                return
            yield process

    def _run_round(self, process: PeerProcess, result: PeerResult, clips: Sequence[AudioClip], seed: int) -> bool:
        files = write_audio_files(clips, self.folder / "round", seed)
        time.sleep(REST_S)
        try:
            result.rounds.append(process.run(files))
        except ProcessFailed as error:
            self._leave_out(result.config, error)
            return False
        result.peak_bytes = process.peak_bytes
        audio_s = sum(clip.duration_s for clip in clips)
        wall_s = result.rounds[-1].wall_s
        self.log(f"{result.config.name}: {wall_s:.2f} s, {audio_s / wall_s:.1f} × real time")
        return True

    def _leave_out(self, config: PeerConfig, error: ProcessFailed) -> None:
        note = f"{config.name} is not shown: {error}"
        self.notes.append(note)
        self.log(note)
