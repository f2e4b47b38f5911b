"""The same requests through a server and through an engine without HTTP, for each number of callers.

Rounds alternate, so that other load on the machine affects both alike. Reading and decoding the audio is part of both;
every file has its own noise in every round, so that no request is a cache hit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from choral.bench import process_tree
from choral.bench.clips import AudioClip, AudioFile, write_audio_files
from choral.bench.endpoints import Endpoint, EndpointRound, ServerCallers
from choral.bench.http_client import HealthProbe

N_WARM_UP = 4  # requests
MIN_SHARE, MIN_SHARE_CALLERS = 0.90, 32  # of the engine's throughput, at this number of callers
MAX_LIVE_S = 0.050  # /health/live at p99


@dataclass(frozen=True)
class LoadSettings:
    concurrency: tuple[int, ...]
    n_requests: int  # at least; two for each caller if that is more
    n_rounds: int


@dataclass(frozen=True)
class ServeTargets:
    """The processes to measure; a server that was already running has no known process, and no engine beside it."""

    url: str
    server_pid: int | None
    callers: ServerCallers
    engine: Endpoint | None
    has_same_texts: bool = True  # as the engine; random weights give other text to other audio


@dataclass(frozen=True)
class SideResult:
    """The server or the engine; the field names are those of the JSON line, as below."""

    requests_per_s: float
    audio_s_per_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    cpu_s: float | None  # of its processes, in all rounds
    failures: tuple[str, ...]


@dataclass(frozen=True)
class ConcurrencyResult:
    callers: int
    requests: int  # per round
    server: SideResult
    callers_cpu_s: float
    first_text_p50_s: float
    first_text_p95_s: float
    live_p50_s: float
    live_p99_s: float
    live_failures: int
    late_p99_s: float  # how late the probe itself woke
    engine: SideResult | None
    share: float | None  # server throughput relative to the engine's: median of the rounds
    different_texts: int | None  # between the two; None: not compared


@dataclass(frozen=True)
class _TimedRound:
    round: EndpointRound
    cpu_s: float | None


def measure(
    settings: LoadSettings,
    clips: Sequence[AudioClip],
    targets: ServeTargets,
    folder: Path,
    log: Callable[[str], None],
) -> tuple[ConcurrencyResult, ...]:
    warm_up = write_audio_files(list(islice(cycle(clips), N_WARM_UP)), folder / "audio", seed=0)
    for endpoint in (targets.callers, targets.engine):
        if endpoint is not None:
            endpoint.run(warm_up, 2)
    results = []
    for n_callers in settings.concurrency:
        sent = list(islice(cycle(clips), max(settings.n_requests, 2 * n_callers)))
        run = _ConcurrencyRun(targets, n_callers, len(sent), sum(clip.duration_s for clip in sent))
        for number in range(settings.n_rounds):
            files = write_audio_files(sent, folder / "audio", seed=1000 * n_callers + number + 1)
            run.add_round(files, is_server_first=number % 2 == 0)
            log(run.progress_line())
        results.append(run.result())
    return tuple(results)


@dataclass
class _ConcurrencyRun:
    """All rounds with the same number of callers."""

    targets: ServeTargets
    n_callers: int
    n_requests: int  # per round
    audio_s: float  # per round
    served: list[_TimedRound] = field(default_factory=list)
    direct: list[_TimedRound] = field(default_factory=list)  # by the engine without HTTP
    callers_cpu_s: float = 0.0
    live_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    n_live_failures: int = 0

    def add_round(self, files: Sequence[AudioFile], *, is_server_first: bool) -> None:
        if is_server_first:
            self._run_server(files)
        engine = self.targets.engine
        if engine is not None:
            self.direct.append(self._run(engine, engine.pid, files))
        if not is_server_first:
            self._run_server(files)

    def progress_line(self) -> str:
        shares = self._shares()
        share = f", {shares[-1]:.0%} of the engine's" if shares else ""
        speed = self.n_requests / self.served[-1].round.wall_s
        return f"{self.n_callers} callers, round {len(self.served)}: {speed:.2f} requests/s{share}"

    def result(self) -> ConcurrencyResult:
        first_texts_s = [first_s for one in self.served for first_s in one.round.first_texts_s]
        first_p50_s, first_p95_s = _percentiles(first_texts_s, 50, 95)
        live_p50_s, live_p99_s = _percentiles(self.live_s, 50, 99)
        shares = self._shares()
        return ConcurrencyResult(
            callers=self.n_callers,
            requests=self.n_requests,
            server=self._side(self.served),
            callers_cpu_s=self.callers_cpu_s,
            first_text_p50_s=first_p50_s,
            first_text_p95_s=first_p95_s,
            live_p50_s=live_p50_s,
            live_p99_s=live_p99_s,
            live_failures=self.n_live_failures,
            late_p99_s=_percentiles(self.late_s, 99)[0],
            engine=self._side(self.direct) if self.direct else None,
            share=statistics.median(shares) if shares else None,
            different_texts=self._n_different_texts(),
        )

    def _run_server(self, files: Sequence[AudioFile]) -> None:
        callers = self.targets.callers
        before_s = callers.cpu_s
        with HealthProbe(self.targets.url) as probe:
            self.served.append(self._run(callers, self.targets.server_pid, files))
        self.callers_cpu_s += callers.cpu_s - before_s
        self.live_s += probe.latencies_s
        self.late_s += probe.late_s
        self.n_live_failures += probe.n_failures

    def _run(self, endpoint: Endpoint | ServerCallers, pid: int | None, files: Sequence[AudioFile]) -> _TimedRound:
        before_s = process_tree.cpu_s(pid) if pid is not None else 0.0
        done = endpoint.run(files, self.n_callers)
        return _TimedRound(done, process_tree.cpu_s(pid) - before_s if pid is not None else None)

    def _side(self, rounds: Sequence[_TimedRound]) -> SideResult:
        wall_s = sum(one.round.wall_s for one in rounds)
        p50_s, p95_s, p99_s = _percentiles([spent_s for one in rounds for spent_s in one.round.latencies_s], 50, 95, 99)
        return SideResult(
            requests_per_s=len(rounds) * self.n_requests / wall_s,
            audio_s_per_s=len(rounds) * self.audio_s / wall_s,
            p50_s=p50_s,
            p95_s=p95_s,
            p99_s=p99_s,
            cpu_s=None if rounds[0].cpu_s is None else sum(one.cpu_s or 0.0 for one in rounds),
            failures=tuple(failure for one in rounds for failure in one.round.failures),
        )

    def _shares(self) -> list[float]:
        """Round by round, the server's throughput relative to the engine's."""
        pairs = zip(self.served, self.direct, strict=False)
        return [direct.round.wall_s / served.round.wall_s for served, direct in pairs]

    def _n_different_texts(self) -> int | None:
        if not self.targets.has_same_texts:
            return None
        return sum(
            one != other
            for served, direct in zip(self.served, self.direct, strict=False)
            for one, other in zip(served.round.texts, direct.round.texts, strict=True)
        )


def _percentiles(values: Sequence[float], *percents: int) -> tuple[float, ...]:
    return tuple(np.percentile(values, percents).tolist()) if values else (float("nan"),) * len(percents)


def check_targets(results: Sequence[ConcurrencyResult]) -> list[tuple[str, bool | None]]:
    """The targets, and whether they hold; None: not measured."""
    shares = [one.share for one in results if one.callers == MIN_SHARE_CALLERS and one.share is not None]
    live_p99_s = max(one.live_p99_s for one in results)
    n_failed = sum(len(one.server.failures) + one.live_failures for one in results)
    throughput = f"at least {MIN_SHARE:.0%} of the engine's own throughput with {MIN_SHARE_CALLERS} callers"
    return [
        (throughput, shares[0] >= MIN_SHARE if shares else None),
        (f"/health/live within {MAX_LIVE_S * 1e3:.0f} ms at p99", live_p99_s <= MAX_LIVE_S),
        ("every request answered", n_failed == 0),
    ]
