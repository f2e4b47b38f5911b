"""What `choral bench serve` prints: its tables, and the bars that were set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from choral.bench.report import verdict
from choral.cli.console import format_table

if TYPE_CHECKING:
    from choral.bench.serve_load import ConcurrencyResult, SideResult
    from choral.bench.soak import SoakReport

SIDE = ("requests/s", "audio s/s", "p50 s", "p95 s", "p99 s", "cpu s", "failed")
FAILURES_TOLD = 5


def load_table(levels: Sequence[ConcurrencyResult]) -> str:
    first, live = "first text p50, p95 s", "/health/live p50, p99 ms"
    rows: list[tuple[str, ...]] = [("callers", "", *SIDE, first, live)]
    for level in levels:
        firsts = f"{level.first_text_p50_s:.2f}, {level.first_text_p95_s:.2f}"
        lives = f"{level.live_p50_s * 1e3:.1f}, {level.live_p99_s * 1e3:.1f}"
        rows.append((str(level.callers), "server", *_side(level.server), firsts, lives))
        if level.engine is not None:
            rows.append(("", "engine", *_side(level.engine), "", ""))
    late_ms = max(level.late_p99_s for level in levels) * 1e3
    late = f"this machine wakes a program that sleeps up to {late_ms:.1f} ms late (p99) under this load\n"
    return format_table(rows, numbers=(0, *range(2, len(rows[0])))) + "\n" + _beside(levels) + late + _failures(levels)


def _side(side: SideResult) -> tuple[str, ...]:
    cpu = "" if side.cpu_s is None else f"{side.cpu_s:.0f}"
    seconds = (f"{value:.2f}" for value in (side.p50_s, side.p95_s, side.p99_s))
    return (f"{side.requests_per_s:.2f}", f"{side.audio_s_per_s:.0f}", *seconds, cpu, str(len(side.failures)))


def _beside(levels: Sequence[ConcurrencyResult]) -> str:
    told = ""
    for level in levels:
        if level.share is not None:
            texts = f"{level.different_texts} texts differ" if level.different_texts else "all texts the same"
            told += (
                f"{level.callers} callers: {level.share:.1%} of the engine's throughput, {texts}, "
                f"{level.callers_cpu_s:.1f} s of processor time went to the callers\n"
            )
    return told


def _failures(levels: Sequence[ConcurrencyResult]) -> str:
    failures = [failure for level in levels for failure in level.server.failures]
    return "".join(f"failed: {failure}\n" for failure in failures[:FAILURES_TOLD])


def soak_table(report: SoakReport) -> str:
    rows: list[tuple[str, ...]] = [("s", "MB", "open files", "temporary", "answered", "left", "refused", "failed")]
    for sample in (report.idle_before, *report.samples, report.idle_after):
        tally = sample.tally
        counts = (sample.open_files, sample.temp_files, tally.n_good, tally.n_gone, tally.n_bad, len(tally.failures))
        rows.append((f"{sample.at_s:.0f}", f"{sample.memory_bytes / 1e6:,.0f}", *map(str, counts)))
    tally = report.tally
    facts = (
        f"memory at most {report.memory_drift:.1%} from where it was after {report.settle_s:.0f} s, "
        f"{report.open_files_drift:+d} open files, {tally.n_changed} texts other than before, "
        f"{tally.n_bad_taken} bad requests answered wrongly\n"
    )
    failures = "".join(f"failed: {failure}\n" for failure in tally.failures[:FAILURES_TOLD])
    return format_table(rows, numbers=range(len(rows[0]))) + "\n" + facts + failures


def told_verdicts(found: Iterable[tuple[str, bool | None]]) -> str:
    return "".join(verdict(name, holds=holds) for name, holds in found)
