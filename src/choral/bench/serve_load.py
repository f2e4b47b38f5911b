"""The same requests through a server and through an engine without HTTP, side by side, for each number of callers.

Rounds alternate, so that a busy moment of the machine hits both alike. Reading and decoding the audio is part of both;
every file has noise of its own in every round, so that no cache answers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from choral.bench import process_tree
from choral.bench.clips import AudioClip, AudioFile, write_audio_files
from choral.bench.endpoints import Endpoint, EndpointRound
from choral.bench.health_probe import HealthProbe

WARM_UP_REQUESTS = 4
SHARE_BAR, SHARE_BAR_CALLERS = 0.90, 32  # of the engine's own throughput, with so many callers
LIVE_BAR_S = 0.050  # of /health/live at p99


@dataclass(frozen=True)
class LoadSettings:
    concurrency: tuple[int, ...]
    n_requests: int  # at least; with more than half as many callers, two for each of them
    n_rounds: int


@dataclass(frozen=True)
class ServeTargets:
    """What is measured. Of a server that was running already the process is not known, and no engine is beside it."""

    url: str
    server_pid: int | None
    callers: Endpoint
    engine: Endpoint | None


@dataclass(frozen=True)
class SideResult:
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
    requests: int  # a round
    server: SideResult
    callers_cpu_s: float
    first_text_p50_s: float
    first_text_p95_s: float
    live_p50_s: float
    live_p99_s: float
    live_failures: int
    late_p99_s: float  # the prober's own waking
    engine: SideResult | None
    share: float | None  # of the engine's throughput that the server reaches: median of the rounds
    different_texts: int  # between the two


@dataclass(frozen=True)
class _MeasuredRound:
    round: EndpointRound
    cpu_s: float | None


def measure(
    plan: LoadSettings, sounds: Sequence[AudioClip], subjects: ServeTargets, folder: Path, tell: Callable[[str], None]
) -> tuple[ConcurrencyResult, ...]:
    warm_up = write_audio_files(list(islice(cycle(sounds), WARM_UP_REQUESTS)), folder / "audio", seed=0)
    for end in (subjects.callers, subjects.engine):
        if end is not None:
            end.run(warm_up, 2)
    levels = []
    for n_callers in plan.concurrency:
        sent = list(islice(cycle(sounds), max(plan.n_requests, 2 * n_callers)))
        run = _ConcurrencyRun(subjects, n_callers, len(sent), sum(sound.duration_s for sound in sent))
        for number in range(plan.n_rounds):
            seed = 1000 * n_callers + number + 1
            run.add_round(write_audio_files(sent, folder / "audio", seed), is_server_first=number % 2 == 0)
            tell(run.last_round())
        levels.append(run.level())
    return tuple(levels)


class _ConcurrencyRun:
    """All rounds with the same number of callers."""

    def __init__(self, subjects: ServeTargets, n_callers: int, n_requests: int, audio_s: float) -> None:
        self._subjects, self._n_callers = subjects, n_callers
        self._n_requests, self._audio_s = n_requests, audio_s  # of each round
        self._served: list[_MeasuredRound] = []
        self._alone: list[_MeasuredRound] = []
        self._callers_cpu_s = 0.0
        self._live_s: list[float] = []
        self._late_s: list[float] = []
        self._n_live_failures = 0

    def add_round(self, requests: Sequence[AudioFile], *, is_server_first: bool) -> None:
        if is_server_first:
            self._serve(requests)
        engine = self._subjects.engine
        if engine is not None:
            self._alone.append(self._run(engine, engine.pid, requests))
        if not is_server_first:
            self._serve(requests)

    def last_round(self) -> str:
        share = _shares(self._served, self._alone)
        told = f", {share[-1]:.0%} of the engine's" if share else ""
        speed = self._n_requests / self._served[-1].round.wall_s
        return f"{self._n_callers} callers, round {len(self._served)}: {speed:.2f} requests/s{told}"

    def level(self) -> ConcurrencyResult:
        firsts_s = [first_s for seen in self._served for first_s in seen.round.first_texts_s]
        first_p50_s, first_p95_s = _percentiles(firsts_s, 50, 95)
        live_p50_s, live_p99_s = _percentiles(self._live_s, 50, 99)
        shares = _shares(self._served, self._alone)
        return ConcurrencyResult(
            callers=self._n_callers,
            requests=self._n_requests,
            server=self._side(self._served),
            callers_cpu_s=self._callers_cpu_s,
            first_text_p50_s=first_p50_s,
            first_text_p95_s=first_p95_s,
            live_p50_s=live_p50_s,
            live_p99_s=live_p99_s,
            live_failures=self._n_live_failures,
            late_p99_s=_percentiles(self._late_s, 99)[0],
            engine=self._side(self._alone) if self._alone else None,
            share=statistics.median(shares) if shares else None,
            different_texts=_n_different(self._served, self._alone),
        )

    def _serve(self, requests: Sequence[AudioFile]) -> None:
        callers = self._subjects.callers
        before_s = process_tree.cpu_s(callers.pid)
        with HealthProbe(self._subjects.url) as prober:
            self._served.append(self._run(callers, self._subjects.server_pid, requests))
        self._callers_cpu_s += process_tree.cpu_s(callers.pid) - before_s
        self._live_s += prober.latencies_s
        self._late_s += prober.late_s
        self._n_live_failures += prober.n_failures

    def _run(self, end: Endpoint, pid: int | None, requests: Sequence[AudioFile]) -> _MeasuredRound:
        if pid is None:
            return _MeasuredRound(end.run(requests, self._n_callers), None)
        before_s = process_tree.cpu_s(pid)
        done = end.run(requests, self._n_callers)
        return _MeasuredRound(done, process_tree.cpu_s(pid) - before_s)

    def _side(self, seen: Sequence[_MeasuredRound]) -> SideResult:
        wall_s = sum(one.round.wall_s for one in seen)
        p50_s, p95_s, p99_s = _percentiles([spent_s for one in seen for spent_s in one.round.latencies_s], 50, 95, 99)
        return SideResult(
            requests_per_s=len(seen) * self._n_requests / wall_s,
            audio_s_per_s=len(seen) * self._audio_s / wall_s,
            p50_s=p50_s,
            p95_s=p95_s,
            p99_s=p99_s,
            cpu_s=None if seen[0].cpu_s is None else sum(one.cpu_s or 0.0 for one in seen),
            failures=tuple(failure for one in seen for failure in one.round.failures),
        )


def _shares(served: Sequence[_MeasuredRound], alone: Sequence[_MeasuredRound]) -> list[float]:
    """EndpointRound by round, the server's throughput by the engine's."""
    return [own.round.wall_s / mine.round.wall_s for mine, own in zip(served, alone, strict=False)]


def _n_different(served: Sequence[_MeasuredRound], alone: Sequence[_MeasuredRound]) -> int:
    return sum(
        one != other
        for mine, own in zip(served, alone, strict=False)
        for one, other in zip(mine.round.texts, own.round.texts, strict=True)
    )


def _percentiles(values: Sequence[float], *wanted: int) -> tuple[float, ...]:
    return tuple(np.percentile(values, wanted).tolist()) if values else (float("nan"),) * len(wanted)


def verdicts(levels: Sequence[ConcurrencyResult]) -> list[tuple[str, bool | None]]:
    """The bars that are set, and whether they hold; None: not measured."""
    shares = [level.share for level in levels if level.callers == SHARE_BAR_CALLERS and level.share is not None]
    live_p99_s = max(level.live_p99_s for level in levels)
    n_failed = sum(len(level.server.failures) + level.live_failures for level in levels)
    return [
        (
            f"at least {SHARE_BAR:.0%} of the engine's own throughput with {SHARE_BAR_CALLERS} callers",
            shares[0] >= SHARE_BAR if shares else None,
        ),
        (f"/health/live within {LIVE_BAR_S * 1e3:.0f} ms at p99", live_p99_s <= LIVE_BAR_S),
        ("every request answered", n_failed == 0),
    ]
