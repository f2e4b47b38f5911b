"""Do attackers harm good clients? Runs both against one server for minutes, and watches its memory and health.

Good clients send the mixed load of `choral bench serve --soak`. Attackers send bad uploads, slow uploads, WebSockets
that flood and do not read, and hostile jobs. FOLDER has clips of speech of at most 30 s; without one, five sentences
are downloaded.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from choral.bench import soak
from choral.bench.clips import AudioClip
from choral.bench.http_client import HealthProbe
from choral.bench.process_tree import require_linux
from choral.bench.report import json_line, verdicts
from choral.bench.server_process import ServerProcess
from choral.cli.arguments import Parser, describe
from choral.cli.bench import add_folder, find_short_clips, progress, require_counts
from choral.cli.bench_serve import duration_s, failure_lines, soak_table
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import machine_arguments
from support.attackers import AttackCounts, Attackers
from support.script import run_script

MAX_LIVE_P99_S = 0.25
SERVER_FLAGS = ("--allowed-hosts=127.0.0.1", "--upload-stall-s=5", "--realtime-idle-s=30")


@dataclass(frozen=True)
class AttackedSoakResult:
    report: soak.SoakReport
    attacks: AttackCounts
    live_p50_s: float
    live_p99_s: float
    late_p99_s: float  # how late the probe's own thread woke
    live_failures: int

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """At the start, when the first part is over, and at the end."""
        settled = [sample for sample in self.report.samples if sample.at_s >= self.report.settle_s]
        return settled[0].memory_bytes, settled[-1].memory_bytes

    def check_targets(self) -> list[tuple[str, bool]]:
        counts = self.report.counts
        return [
            ("no good request failed", counts.n_good > 0 and not counts.failures),
            (f"/health/live p99 within {MAX_LIVE_P99_S * 1e3:.0f} ms", self._is_live),
            (f"memory within {soak.MAX_MEMORY_DRIFT:.0%}", self.report.memory_drift <= soak.MAX_MEMORY_DRIFT),
            ("no undocumented error", not self.attacks.unexpected),
        ]

    @property
    def _is_live(self) -> bool:
        return self.live_failures == 0 and self.live_p99_s - self.late_p99_s <= MAX_LIVE_P99_S


def measure(
    settings: soak.SoakSettings,
    n_attackers: int,
    clips: Sequence[AudioClip],
    flags: Sequence[str],
    folder: Path,
    log: Callable[[str], None],
) -> AttackedSoakResult:
    with ServerProcess([*flags, *SERVER_FLAGS], folder) as server, Attackers(server.url, n_attackers) as attackers:
        attackers.command("start")
        with HealthProbe(server.url) as probe:
            report = soak.measure(settings, clips, server, folder, log)
        attacks = attackers.command("stop")
        server.require_alive()
    p50_s, p99_s = np.quantile(probe.latencies_s, (0.5, 0.99))
    late_p99_s = float(np.quantile(probe.late_s, 0.99))
    return AttackedSoakResult(report, attacks, float(p50_s), float(p99_s), late_p99_s, probe.n_failures)


def result_table(result: AttackedSoakResult) -> str:
    counts, (start_bytes, end_bytes) = result.report.counts, result.memory_bytes
    rows = [
        ("good requests", f"{counts.n_good} answered, {len(counts.failures)} failed, {counts.n_changed} texts changed"),
        ("attacks", ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in sorted(result.attacks.attacks.items()))),
        ("responses", ", ".join(f"{n} × {status}" for status, n in sorted(result.attacks.statuses.items()))),
        ("/health/live", f"p50 {result.live_p50_s * 1e3:.1f} ms, p99 {result.live_p99_s * 1e3:.1f} ms, "
                         f"{result.live_failures} failed; the machine was {result.late_p99_s * 1e3:.1f} ms late (p99)"),
        ("memory", f"{start_bytes / 1e6:,.0f} MB at the start, {end_bytes / 1e6:,.0f} MB at the end"),
    ]  # fmt: skip
    return f"{soak_table(result.report)}\n{format_table(rows)}\n{failure_lines(result.attacks.unexpected)}"


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument(
        "--time", type=duration_s, default=600.0, metavar="TIME", help=describe("how long: 90s, 30m", "10m")
    )
    parser.add_argument("--clients", type=int, default=8, metavar="N", help=describe("good clients", 8))
    parser.add_argument("--attackers", type=int, default=4, metavar="N", help=describe("attackers of each kind", 4))


def run(arguments: argparse.Namespace) -> int:
    require_linux()
    require_counts(arguments, clients=1, attackers=1)
    clips = find_short_clips(arguments.folder, arguments.quiet)
    settings = soak.SoakSettings(arguments.time, arguments.clients)
    with tempfile.TemporaryDirectory(prefix="choral-attack-") as folder:
        result = measure(
            settings, arguments.attackers, clips, machine_arguments(arguments), Path(folder), progress(arguments)
        )
    write_stdout(result_table(result) + verdicts(result.check_targets()))
    write_stdout(json_line("soak-under-attack", {"settings": settings, "result": result}) + "\n")
    return 0 if all(holds for _, holds in result.check_targets()) else 1


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run, epilog="exit codes: 0 all targets hold; 1 one does not")
