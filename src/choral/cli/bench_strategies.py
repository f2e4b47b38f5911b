"""`choral bench strategies`: ways to serve many callers with one model, from one at a time to Choral, measured."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, describe
from choral.cli.bench_speed import find_clips, pick_device, require_counts, resolve_model
from choral.cli.console import format_table, message, write_stdout
from choral.cli.inputs import expand
from choral.cli.shared_flags import add_machine_flags, engine_settings
from choral.errors import AudioNotFound

if TYPE_CHECKING:
    from choral.bench.corpus import LabelledClip
    from choral.bench.strategies import StrategyReport, StrategySettings

DESCRIPTION = """\
Ways to serve many callers with one Whisper model, measured on this machine: one request after another,
many threads, copies of the model, micro-batches and static batches on CTranslate2, and Choral's engines.

FOLDER has speech in clips of at most 30 s; without one, five sentences are fetched. Each strategy has a
process of its own, and they take turns. Requests get noise that nobody hears, so that none is the same
as another.
"""


def add_strategies(actions: argparse._SubParsersAction[Any]) -> None:
    parser: Parser = actions.add_parser(
        "strategies",
        help="ways to serve many callers, side by side",
        usage="choral bench strategies [FOLDER] [options]",
        description=DESCRIPTION,
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=64, metavar="N", help=describe("requests in a round", 64))
    parser.add_argument("--callers", type=int, default=16, metavar="N", help=describe("who send them, at once", 16))
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help=describe("rounds; medians count", 3))
    parser.add_argument("--language", default="en", metavar="CODE", help=describe("spoken in the clips", "en"))
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a chart as a PNG image (needs matplotlib)")
    parser.add_argument("--quiet", action="store_true", help="no progress: only the table")
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run_strategies, parser=parser)


def run_strategies(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from choral.bench import plot, strategies
    from choral.bench.clips import short_clips
    from choral.bench.report import json_line
    from choral.bench.round_robin import RoundRobin
    from choral.model.languages import to_code

    require_counts(arguments, requests=1, callers=1, rounds=1)
    if arguments.plot is not None:
        plot.require_plot(arguments.plot)
    language = to_code(arguments.language)
    found = short_clips(any_clips(arguments.folder, arguments.quiet), arguments.requests)
    sounds = [replace(sound, language=language) for sound in found]
    plan = make_plan(arguments)
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder:
        contest = RoundRobin(Path(folder), tell=(lambda line: None) if arguments.quiet else message)
        report = strategies.measure(plan, sounds, contest, arguments.rounds)
    write_stdout(shown(plan, len(sounds), report))
    if arguments.plot is not None:
        rows = [(row.name, row.requests_per_s) for row in report.rows]
        plot.save_bars(arguments.plot, heading(plan, len(sounds)), "requests a second", rows)
    fields = {"plan": plan, "requests": len(sounds), "audio_s": sum(sound.duration_s for sound in sounds)}
    write_stdout(json_line("strategies", {**fields, "rows": report.rows, "notes": report.notes}) + "\n")
    return 0


def any_clips(folder: Path | None, is_quiet: bool) -> Sequence[LabelledClip]:
    """All audio in the folder: texts are not needed here."""
    from choral.bench.corpus import LabelledClip

    if folder is None:
        return find_clips(None, None, is_quiet)
    if not folder.is_dir():
        raise AudioNotFound(f"there is no folder {folder}")
    found = [Path(item.source) for item in expand([str(folder)]).found]
    return [LabelledClip(path.name, path, "", None) for path in found]


def make_plan(arguments: argparse.Namespace) -> StrategySettings:
    from choral.bench.strategies import StrategySettings

    settings = engine_settings(arguments)
    device = pick_device(settings)
    usual = "float32" if device == "cpu" else "float16"
    return StrategySettings(
        model=resolve_model(arguments.model, device, arguments.quiet),
        device=device,
        compute_type=usual if settings.compute_type == "auto" else settings.compute_type,
        threads=settings.threads or os.cpu_count() or 1,
        engines=("torch", "ctranslate2") if settings.engine == "auto" else (settings.engine,),
        n_callers=arguments.callers,
    )


def heading(plan: StrategySettings, n_requests: int) -> str:
    return (
        f"{n_requests} requests from {plan.n_callers} callers, {plan.model.name} in {plan.compute_type} "
        f"on {plan.device}, {plan.threads} threads"
    )


def shown(plan: StrategySettings, n_requests: int, report: StrategyReport) -> str:
    from choral.bench.strategies import cells, chart

    table = format_table(cells(report), numbers=range(1, len(cells(report)[0])))
    notes = "".join(f"note: {note}\n" for note in report.notes)
    return f"{heading(plan, n_requests)}\n\n{table}\n{chart(report)}{notes}\n"
