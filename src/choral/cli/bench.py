"""`choral bench …`: measurements that anyone can repeat; the last line of each is JSON."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli import (
    bench_engine,
    bench_gpu,
    bench_jobs,
    bench_live,
    bench_prep,
    bench_serve,
    bench_speed,
    bench_strategies,
)
from choral.cli.arguments import Parser, add_flags, add_subcommands, describe, given_options, read_options
from choral.cli.console import aligned, message, write_stdout
from choral.cli.shared_flags import add_machine_flags, load_model
from choral.errors import UsageError
from choral.types import TranscribeOptions

if TYPE_CHECKING:
    from choral.bench.corpus import Clip
    from choral.bench.wer import Report, Score

USAGE = "choral bench COMMAND …"
DESCRIPTION = "Measurements that anyone can repeat; the last line of each is JSON."
EPILOG = None
WER_DESCRIPTION = """\
Word error rate of a model on a FOLDER of speech with transcripts, normalised as OpenAI does.

The folder has a manifest.jsonl (objects with "file", "text" and maybe "language"), LibriSpeech's
*.trans.txt files, or a .txt beside each audio file.
"""
WER_FLAGS = ("language", "mode", "beam_size", "temperature")


def add_arguments(parser: Parser) -> None:
    actions = add_subcommands(parser)
    bench_prep.add_prep(actions)
    _add_wer(actions)
    bench_speed.add_peers(actions)
    bench_strategies.add_strategies(actions)
    bench_engine.add_engine(actions)
    bench_engine.add_fairness(actions)
    bench_gpu.add_gpu(actions)
    bench_live.add_live(actions)
    bench_jobs.add_chaos(actions)
    bench_jobs.add_worker_memory(actions)
    bench_serve.add_serve(actions)


def _add_wer(actions: argparse._SubParsersAction[Any]) -> None:
    wer: Parser = actions.add_parser(
        "wer",
        help="word error rate on a folder with transcripts",
        usage="choral bench wer FOLDER [options]",
        description=WER_DESCRIPTION,
    )
    wer.add_argument("folder", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    wer.add_argument("--limit", type=int, metavar="N", help="stop after this many clips (default: all)")
    wer.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=describe("run openai-whisper and faster-whisper too, where installed", True),
    )
    wer.add_argument("--quiet", action="store_true", help="no progress: only the table")
    add_machine_flags(wer.add_argument_group("model and machine"))
    add_flags(wer.add_argument_group("transcription"), TranscribeOptions, WER_FLAGS)
    wer.set_defaults(run=run_wer, parser=wer)


def run_wer(arguments: argparse.Namespace) -> int:
    from choral.bench import peers, wer
    from choral.bench.corpus import read_corpus

    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError("limit must be a whole number from 1 up")
    clips = read_corpus(arguments.folder)[: arguments.limit]
    wer.normaliser("en")  # a missing package is better known before the work than after it
    options = read_options(given_options(arguments, TranscribeOptions))
    progress = ClipLog(len(clips), is_quiet=arguments.quiet)
    with closing(load_model(arguments)) as model:
        systems, notes = [peers.choral_system(model, options)], []
        if arguments.peers:
            found = peers.find_peers(model, options)
            systems += found.systems
            notes += found.notes
        report = wer.measure(model.name, clips, systems, notes, progress.add)
    write_stdout(table(report) + report.json_line() + "\n")
    return 0


class ClipLog:
    """A line a clip on standard error, as it is done."""

    def __init__(self, n_clips: int, *, is_quiet: bool) -> None:
        self._n_clips = n_clips
        self._n_done = 0
        self._is_quiet = is_quiet

    def add(self, clip: Clip, scores: Mapping[str, Score]) -> None:
        self._n_done += 1
        if not self._is_quiet:
            rates = ", ".join(f"{name} {score.percent:.1f}%" for name, score in scores.items())
            message(f"[{self._n_done}/{self._n_clips}] {clip.name}: {rates}")


def table(report: Report) -> str:
    """Word error rates in percent, a row a clip, and the total."""
    names = list(report.scores)
    rows: list[list[str]] = [["clip", "words", *names]]
    for index, clip in enumerate(report.clips):
        scores = [report.scores[name][index] for name in names]
        rows.append([clip.name, str(scores[0].n_words), *(f"{score.percent:.1f}" for score in scores)])
    totals = [report.total(name) for name in names]
    rows.append(["total", str(totals[0].n_words), *(f"{total.percent:.2f}" for total in totals)])
    rows.append(["seconds", "", *(f"{report.spent_s[name]:.1f}" for name in names)])
    notes = "".join(f"note: {note}\n" for note in report.notes)
    return f"word error rate in percent, {report.model}\n\n{aligned(rows, numbers=range(1, len(names) + 2))}\n{notes}"
