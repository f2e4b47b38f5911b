"""Ways to serve many callers with one Whisper model, measured on this machine: from one at a time to Choral.

The first five are built on CTranslate2 as people do it (`systems.ctranslate2_whisper`); the last ones are Choral's
engines. All get the same files from the same callers, with the same weights, precision and threads, greedy.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from choral.bench.clips import AudioClip
from choral.bench.load_generator import Stages
from choral.bench.report import bars
from choral.bench.round_robin import PeerResult, RoundRobin
from choral.bench.systems.spec import PeerConfig

MICRO_BATCH, STATIC_BATCH = 6, 16


@dataclass(frozen=True)
class StrategySettings:
    model: Path
    device: str
    compute_type: str
    threads: int
    engines: tuple[str, ...]
    n_callers: int


@dataclass(frozen=True)
class StageShares:
    """Of the time in these three, in percent."""

    mel: float
    encoder: float
    decoder: float


@dataclass(frozen=True)
class StrategyRow:
    name: str
    requests_per_s: float
    p50_s: float
    p95_s: float
    idle_percent: float | None
    peak_bytes: int
    stages: StageShares | None  # None: they overlap, and cannot be told apart
    rounds_s: tuple[float, ...]


@dataclass(frozen=True)
class StrategyReport:
    rows: tuple[StrategyRow, ...]
    notes: tuple[str, ...]


def strategies(plan: StrategySettings) -> list[PeerConfig]:
    n_copies = max(2, plan.threads)
    return [
        served(plan, "one request after another", "lock"),
        served(plan, f"{plan.n_callers} threads, one model", "threads"),
        served(
            plan,
            f"{n_copies} copies of the model, {max(1, plan.threads // n_copies)} thread each",
            "copies",
            n_workers=n_copies,
        ),
        served(plan, f"micro-batches of {MICRO_BATCH}, then one by one", "micro-batch", MICRO_BATCH),
        served(plan, f"static batches of {STATIC_BATCH}", "static", STATIC_BATCH),
        *(choral(plan, engine) for engine in plan.engines),
    ]


def served(plan: StrategySettings, name: str, strategy: str, batch_size: int = 0, n_workers: int = 1) -> PeerConfig:
    return PeerConfig(
        family=name,
        setting="",
        library="ctranslate2_whisper",
        model=str(plan.model),
        device=plan.device,
        compute_type=plan.compute_type,
        threads=plan.threads,
        n_callers=plan.n_callers,
        n_workers=n_workers,
        batch_size=batch_size,
        strategy=strategy,
        reads_files=True,
    )


def choral(plan: StrategySettings, engine: str) -> PeerConfig:
    manner = "continuous" if engine == "torch" else "shared batches"
    return PeerConfig(
        family=f"Choral, {manner} ({engine})",
        setting="",
        library="choral_engine",
        model=str(plan.model),
        device=plan.device,
        compute_type=plan.compute_type,
        threads=plan.threads,
        engine=engine,
        n_callers=plan.n_callers,
        reads_files=True,
    )


def measure(plan: StrategySettings, sounds: Sequence[AudioClip], contest: RoundRobin, n_rounds: int) -> StrategyReport:
    standings = contest.compete(strategies(plan), sounds, n_rounds)
    return StrategyReport(tuple(row_of(standing) for standing in standings), tuple(contest.notes))


def row_of(standing: PeerResult) -> StrategyRow:
    """Medians of the rounds; latencies of all of them together."""
    latencies_s = [latency_s for run in standing.runs for latency_s in run.latencies_s]
    idle = [run.idle_share for run in standing.runs if run.idle_share is not None]
    p50_s, p95_s = np.percentile(latencies_s, [50, 95])
    return StrategyRow(
        name=standing.spec.family,
        requests_per_s=len(standing.runs[0].texts) / standing.wall_s,
        p50_s=float(p50_s),
        p95_s=float(p95_s),
        idle_percent=100 * statistics.median(idle) if idle else None,
        peak_bytes=standing.peak_bytes,
        stages=shares(run.stages for run in standing.runs),
        rounds_s=tuple(run.wall_s for run in standing.runs),
    )


def shares(stages: Iterable[Stages | None]) -> StageShares | None:
    known = [own for own in stages if own is not None]
    mel_s, encoder_s, decoder_s = (
        sum(getattr(own, name) for own in known) for name in ("mel_s", "encoder_s", "decoder_s")
    )
    total_s = mel_s + encoder_s + decoder_s
    if not total_s:
        return None
    return StageShares(100 * mel_s / total_s, 100 * encoder_s / total_s, 100 * decoder_s / total_s)


def chart(report: StrategyReport) -> str:
    rows = [(row.name, row.requests_per_s, f"{row.requests_per_s:.2f} requests/s") for row in report.rows]
    return bars(rows)


def cells(report: StrategyReport) -> list[list[str]]:
    """The table, with its heading."""
    heading = ["strategy", "requests/s", "p50 s", "p95 s", "idle %", "peak MB", "mel %", "encoder %", "decoder %"]
    return [heading, *(row_cells(row) for row in report.rows)]


def row_cells(row: StrategyRow) -> list[str]:
    stages = row.stages
    shown = ["", "", ""] if stages is None else [f"{x:.1f}" for x in (stages.mel, stages.encoder, stages.decoder)]
    idle = "" if row.idle_percent is None else f"{row.idle_percent:.1f}"
    times = [f"{row.requests_per_s:.2f}", f"{row.p50_s:.2f}", f"{row.p95_s:.2f}"]
    return [row.name, *times, idle, f"{row.peak_bytes / 1e6:.0f}", *shown]
