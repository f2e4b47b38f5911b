"""`choral bench wer`: the word error rate of a model, beside that of other Whisper libraries."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser, add_flags, describe, given_options, read_options
from choral.cli.bench import add_quiet, progress, require_counts
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import add_machine_flags, load_model
from choral.types import TranscribeOptions

if TYPE_CHECKING:
    from choral.bench.corpus import LabelledClip
    from choral.bench.wer import Score, WerReport

USAGE = "choral bench wer FOLDER [options]"
DESCRIPTION = """\
Word error rate of a model on a FOLDER of speech with transcripts, normalised as OpenAI does.

The folder has a manifest.jsonl (objects with "file", "text" and optionally "language"), LibriSpeech's
*.trans.txt files, or a .txt beside each audio file.
"""
OPTION_FLAGS = ("language", "mode", "beam_size", "temperature")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, metavar="N", help="stop after this many clips (default: all)")
    parser.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=describe("run openai-whisper and faster-whisper too, where installed", True),
    )
    add_quiet(parser)
    add_machine_flags(parser.add_argument_group("model and machine"))
    add_flags(parser.add_argument_group("transcription"), TranscribeOptions, OPTION_FLAGS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from choral.bench import wer
    from choral.bench.corpus import read_corpus
    from choral.bench.peers import ChoralPeer, Peer

    require_counts(arguments, limit=1)
    clips = read_corpus(arguments.folder)[: arguments.limit]
    wer.normaliser("en")  # fail before the work if the package is missing
    options = read_options(given_options(arguments, TranscribeOptions))
    n_done = 0

    def on_clip(clip: LabelledClip, scores: Mapping[str, Score]) -> None:
        nonlocal n_done
        n_done += 1
        rates = ", ".join(f"{name} {score.percent:.1f}%" for name, score in scores.items())
        progress(arguments)(f"[{n_done}/{len(clips)}] {clip.name}: {rates}")

    with closing(load_model(arguments)) as model:
        others, notes = wer.open_peers(model, options) if arguments.peers else ({}, [])
        peers: dict[str, Peer] = {"choral": ChoralPeer(model, options), **others}
        report = wer.measure(model.name, clips, peers, options.language, notes, on_clip)
    write_stdout(wer_table(report) + report.json_line() + "\n")
    return 0


def wer_table(report: WerReport) -> str:
    """Word error rates in percent, a row for each clip, and the total."""
    names = list(report.scores)
    rows: list[list[str]] = [["clip", "words", *names]]
    for index, clip in enumerate(report.clips):
        scores = [report.scores[name][index] for name in names]
        rows.append([clip.name, str(scores[0].n_words), *(f"{score.percent:.1f}" for score in scores)])
    totals = [report.total(name) for name in names]
    rows.append(["total", str(totals[0].n_words), *(f"{total.percent:.2f}" for total in totals)])
    rows.append(["seconds", "", *(f"{report.spent_s[name]:.1f}" for name in names)])
    notes = "".join(f"note: {note}\n" for note in report.notes)
    return (
        f"word error rate in percent, {report.model}\n\n{format_table(rows, numbers=range(1, len(names) + 2))}\n{notes}"
    )
