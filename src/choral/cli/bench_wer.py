"""`choral bench wer`: the word error rate of a model under several conditions, beside that of other libraries."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, get_args

from choral.cli.arguments import Parser, add_flags, describe, given_options, read_options
from choral.cli.bench import add_folder, add_quiet, find_clips, progress, require_counts
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import add_machine_flags, load_model
from choral.errors import UsageError
from choral.options import Mode, TranscribeOptions

if TYPE_CHECKING:
    from choral.bench.labelled_clips import LabelledClip
    from choral.bench.wer_report import WerRow

USAGE = "choral bench wer [FOLDER] [options]"
DESCRIPTION = """\
Word error rate of a model on speech with transcripts, normalised as OpenAI does, and the words that it
invents where nobody speaks.

FOLDER has a manifest.jsonl (objects with "file", "text" and optionally "language"), LibriSpeech's
*.trans.txt files, or a .txt beside each audio file; without one, six sentences are downloaded.

Sets: clips (as they are), mixed (clips joined with pauses), and mixed under conditions: noise and music
(10 dB weaker than speech), telephone (8 kHz µ-law), far (reverberation, quiet), fast (1.4 times); non-speech
(silence, noise, hum, a dial tone, applause, music), which runs with and without the voice detector where
a system has one. Another seed makes other recordings of every set but clips.
"""
OPTION_FLAGS = ("language", "beam_size", "temperature")
HEADER = ("set", "system", "words", "sub", "del", "ins", "WER %", "words/h", "× real time", "windows")
MODES = ("sequential", "batched")


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument("--sets", default="clips", metavar="NAME,…", help=describe("sets, or all", "clips"))
    parser.add_argument("--modes", default=",".join(MODES), metavar="MODE,…", help=describe("modes", ",".join(MODES)))
    parser.add_argument("--minutes", type=float, default=5, help=describe("length of each set that is made", 5))
    parser.add_argument("--seed", type=int, default=1, metavar="N", help=describe("seed of the sets that are made", 1))
    parser.add_argument("--limit", type=int, metavar="N", help="use this many clips of the folder (default: all)")
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
    from choral.bench import wer_report
    from choral.bench.report import json_line
    from choral.bench.speech_sets import NON_SPEECH_SET, SET_NAMES, set_clips
    from choral.bench.wer import normaliser
    from choral.model.store import ModelStore

    require_counts(arguments, limit=1, seed=0)
    if not 0 < arguments.minutes <= 24 * 60:
        raise UsageError("minutes must be a number above 0, for example 5")
    sets = SET_NAMES if arguments.sets == "all" else read_names("sets", arguments.sets, SET_NAMES)
    modes = read_names("modes", arguments.modes, get_args(Mode))
    normaliser("en")  # fail before the work if the package is missing
    corpus = [] if sets == (NON_SPEECH_SET,) else find_speech(arguments)
    options = read_options(given_options(arguments, TranscribeOptions))

    def on_clip(clip: str, system: str, row: WerRow) -> None:
        progress(arguments)(f"{row.set_name}, {clip}: {system}, so far {figures(row)}")

    measured = wer_report.WerRun(on_clip)
    with ExitStack() as stack:
        model = stack.enter_context(closing(load_model(arguments)))
        peers = wer_report.PeerSystems(model, ModelStore().path(model.name), options) if arguments.peers else None
        if peers is not None:
            stack.callback(peers.close)
        for name in sets:
            both_vad = name == NON_SPEECH_SET
            systems: list[wer_report.MeasuredSystem] = [
                *wer_report.choral_systems(model, options, modes, both_vad=both_vad),
                *(() if peers is None else peers.open(both_vad=both_vad)),
            ]
            measured.measure(name, set_clips(name, corpus, arguments.minutes * 60, arguments.seed), systems)
        measured.notes += () if peers is None else peers.notes
    write_stdout(wer_table(model.name, measured.rows, measured.notes))
    fields = {"model": model.name, "seed": arguments.seed, "rows": [row.fields() for row in measured.rows]}
    write_stdout(json_line("wer", {**fields, "notes": measured.notes}) + "\n")
    return 0


def read_names(name: str, value: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    unknown = [part for part in names if part not in known]
    if unknown:
        raise UsageError(f"{name} has {unknown[0]!r}; it must be some of {','.join(known)}")
    return names


def find_speech(arguments: argparse.Namespace) -> Sequence[LabelledClip]:
    """The clips of the folder; without one, those that are downloaded, of two speakers."""
    from choral.bench.labelled_clips import LabelledClip
    from choral.remote.speech_samples import jfk

    clips = find_clips(arguments.folder, arguments.limit, arguments.quiet)
    if arguments.folder is not None:
        return clips
    sample = jfk()
    return [*clips, LabelledClip(sample.path.name, sample.path, sample.text, sample.language)][: arguments.limit]


def figures(row: WerRow) -> str:
    if row.invented_per_hour is not None:
        return f"{row.score.n_insertions} words invented"
    return f"WER {row.score.percent:.1f} %"


def wer_table(model: str, rows: Sequence[WerRow], notes: Sequence[str]) -> str:
    lines = [list(HEADER), *(table_line(row) for row in rows)]
    table = format_table(lines, numbers=range(2, len(HEADER)))
    return f"word error rate, {model}\n\n{table}\n" + "".join(f"note: {note}\n" for note in notes)


def table_line(row: WerRow) -> list[str]:
    counts = (row.score.n_words, row.score.n_substitutions, row.score.n_deletions, row.score.n_insertions)
    invented = row.invented_per_hour
    return [
        row.set_name,
        row.system,
        *(str(count) for count in counts),
        "-" if invented is not None else f"{row.score.percent:.2f}",
        "-" if invented is None else f"{invented:.0f}",
        f"{row.times_real_time:.1f}",
        "-" if row.n_windows is None else str(row.n_windows),
    ]
