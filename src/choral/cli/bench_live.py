"""`choral bench live`: how far text lags behind speech in live sessions, and what files wait beside them."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, describe
from choral.cli.bench_speed import find_clips, require_counts
from choral.cli.console import aligned, message, write_stdout
from choral.cli.shared_flags import add_machine_flags, machine_arguments
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.live.measure import LiveReport, Spread
    from choral.bench.wer import Score

DESCRIPTION = """\
Stream speech in real time over WebSockets to a server that is started here, in one session and in many at
once: how long after it was said a word is there, how long after a turn its whole text, how right it is
beside the same clips sent as files, and what a file of 5 s takes alone and beside the most sessions.

FOLDER has speech with its texts, as `choral bench wer` reads it; without one, five sentences are fetched.
"""
MOST_SESSIONS = 1000


def add_live(actions: argparse._SubParsersAction[Any]) -> None:
    parser: Parser = actions.add_parser(
        "live",
        help="how far text lags behind speech in live sessions",
        usage="choral bench live [FOLDER] [options]",
        description=DESCRIPTION,
        epilog="exit codes: 0 all pieces of text joined were the whole texts, 1 not all",
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument(
        "--sessions", default="1,5,20", metavar="N,N,…", help=describe("sessions at once, in turn", "1,5,20")
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="N", help=describe("that each session speaks, at least", 30)
    )
    parser.add_argument("--files", type=int, default=10, metavar="N", help=describe("files of 5 s sent alone", 10))
    parser.add_argument("--limit", type=int, metavar="N", help="take only this many clips (default: all)")
    parser.add_argument("--quiet", action="store_true", help="no progress: only the table")
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run_live, parser=parser)


def run_live(arguments: argparse.Namespace) -> int:
    from choral.bench.live.measure import Plan, measure
    from choral.bench.load import short_sounds
    from choral.bench.report import json_line
    from choral.bench.serve.server_process import ServerProcess
    from choral.bench.wer import normaliser

    require_counts(arguments, files=1, limit=1)
    if not 5 <= arguments.seconds <= 3600:
        raise UsageError("seconds must be a number from 5 to 3600")
    plan = Plan(read_sessions(arguments.sessions), arguments.seconds, arguments.files)
    normaliser("en")  # a missing package is better known before the work than after it
    clips = find_clips(arguments.folder, arguments.limit, arguments.quiet)
    sounds = short_sounds(clips, len(clips))
    tell = (lambda line: None) if arguments.quiet else message
    flags = [*machine_arguments(arguments), f"--realtime-sessions={max(plan.sessions)}"]
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder, ServerProcess(flags, Path(folder)) as server:
        report = measure(server.url, sounds, plan, tell)
    write_stdout(shown(report))
    write_stdout(json_line("live", {"model": arguments.model, "plan": plan, "report": report}) + "\n")
    return 0 if all(load.is_faithful for load in report.loads) else 1


def read_sessions(given: str) -> tuple[int, ...]:
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_SESSIONS for part in parts):
        raise UsageError(f"sessions is {given!r}; it must be numbers from 1 to {MOST_SESSIONS}, for example 1,5,20")
    return tuple(int(part) for part in parts)


def shown(report: LiveReport) -> str:
    """Seconds as median and 95th percentile."""
    rows = [["sessions", "text behind speech", "whole text behind turn", "joined = whole", "word errors", "5 s file"]]
    rows.append(["none", "", "", "", percent(report.plain), seconds(report.files_alone)])
    for load in report.loads:
        faithful = "all" if load.is_faithful else "NOT ALL"
        cells = [seconds(load.text), seconds(load.completed), faithful, percent(load.live), seconds(load.files)]
        rows.append([str(load.sessions), *cells])
    head = "live sessions: seconds are median / 95th percentile; the first row has the same clips sent as files\n\n"
    return head + aligned(rows, numbers=range(1, 6)) + "\n"


def seconds(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median_s:.2f} / {spread.p95_s:.2f} s"


def percent(score: Score) -> str:
    return f"{score.percent:.1f} %"
