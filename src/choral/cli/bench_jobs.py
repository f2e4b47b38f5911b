"""`choral bench chaos` and `choral bench worker-memory`: whether jobs get lost, and whether a worker grows."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, describe
from choral.cli.bench_speed import require_counts
from choral.cli.bench_strategies import any_clips
from choral.cli.console import aligned, message, write_stdout
from choral.cli.shared_flags import add_machine_flags, load_model, machine_arguments
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.chaos import Tally

CHAOS = """\
Send jobs to workers that are killed without warning every few seconds, restart Redis half-way, and
count what comes out. Redis, a file server, a receiver of webhooks and the workers are started here, on
this machine.

FOLDER has speech in clips of at most 30 s; without one, five sentences are fetched.
"""
MEMORY = """\
Memory of one worker after its first short jobs, after many, and after a long file.

FOLDER has speech in clips of at most 30 s; without one, five sentences are fetched.
"""


def add_chaos(actions: argparse._SubParsersAction[Any]) -> None:
    parser: Parser = actions.add_parser(
        "chaos",
        help="jobs while workers are killed and Redis restarts: is anything lost?",
        usage="choral bench chaos [FOLDER] [options]",
        description=CHAOS,
        epilog="exit codes: 0 nothing was lost, 1 something was",
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=200, metavar="N", help=describe("jobs to send", 200))
    parser.add_argument("--workers", type=int, default=3, metavar="N", help=describe("at work at any time", 3))
    parser.add_argument(
        "--kill-every-s", type=float, default=5.0, metavar="SECONDS", help=describe("about how often one is killed", 5)
    )
    parser.add_argument("--quiet", action="store_true", help="no progress: only the tally")
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run_chaos, parser=parser)


def run_chaos(arguments: argparse.Namespace) -> int:
    from choral.bench import chaos
    from choral.bench.report import json_line

    require_counts(arguments, jobs=1, workers=1)
    if not arguments.kill_every_s > 0:
        raise UsageError("kill-every-s must be a number of seconds above 0")
    paths = [clip.path.resolve() for clip in any_clips(arguments.folder, arguments.quiet)][: arguments.jobs]
    plan = chaos.Plan(n_jobs=arguments.jobs, n_workers=arguments.workers, kill_every_s=arguments.kill_every_s)
    model = load_model(arguments)
    with tempfile.TemporaryDirectory(prefix="choral-chaos-") as folder:
        tell = (lambda line: None) if arguments.quiet else message
        tally = chaos.measure(plan, paths, model, machine_arguments(arguments), Path(folder), tell)
    write_stdout(shown_tally(tally))
    write_stdout(json_line("chaos", {"tally": tally, "nothing_lost": tally.is_nothing_lost}) + "\n")
    return 0 if tally.is_nothing_lost else 1


def shown_tally(tally: Tally) -> str:
    rows = [
        ("jobs", str(tally.jobs)),
        ("results", str(tally.results)),
        ("equal to transcribe", str(tally.equal)),
        ("webhooks delivered", f"{tally.webhooks} keys, {tally.webhooks_again} of them more than once"),
        ("dead letters", str(tally.dead)),
        ("workers killed", str(tally.kills)),
        ("Redis restarted", str(tally.redis_restarts)),
        ("jobs taken over", str(tally.claims)),
        ("seconds", f"{tally.spent_s:.1f}"),
    ]
    return f"{aligned(rows)}\n{'nothing was lost' if tally.is_nothing_lost else 'SOMETHING WAS LOST'}\n"


def add_worker_memory(actions: argparse._SubParsersAction[Any]) -> None:
    parser: Parser = actions.add_parser(
        "worker-memory",
        help="whether a worker grows with the jobs it has done",
        usage="choral bench worker-memory [FOLDER] [options]",
        description=MEMORY,
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=200, metavar="N", help=describe("jobs before the first look", 200))
    parser.add_argument("--jobs", type=int, default=2000, metavar="N", help=describe("short jobs in all", 2000))
    parser.add_argument(
        "--long-s", type=float, default=10_800.0, metavar="SECONDS", help=describe("a long file", 10800)
    )
    parser.add_argument("--quiet", action="store_true", help="no progress: only the table")
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run_worker_memory, parser=parser)


def run_worker_memory(arguments: argparse.Namespace) -> int:
    from choral.bench import worker_memory
    from choral.bench.load import short_sounds
    from choral.bench.report import json_line, verdict

    require_counts(arguments, first=1, jobs=1)
    if arguments.first > arguments.jobs:
        raise UsageError("first must not be more than jobs")
    clips = any_clips(arguments.folder, arguments.quiet)
    plan = worker_memory.Plan(arguments.first, arguments.jobs, arguments.long_s)
    with tempfile.TemporaryDirectory(prefix="choral-memory-") as folder:
        tell = (lambda line: None) if arguments.quiet else message
        report = worker_memory.measure(
            plan, short_sounds(clips, len(clips)), machine_arguments(arguments), Path(folder), tell
        )
    rows = [("after", "MB", "of the first")]
    rows += [
        (level.after, f"{level.resident_bytes / 1e6:,.0f}", f"{level.resident_bytes / report.first_bytes:.3f}")
        for level in report.levels
    ]
    write_stdout(aligned(rows, numbers=(1, 2)) + "\n" + verdict("within 10 % of the first", holds=report.holds))
    write_stdout(json_line("worker-memory", {"levels": report.levels, "ratio": report.ratio}) + "\n")
    return 0
