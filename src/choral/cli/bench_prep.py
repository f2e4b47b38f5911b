"""`choral bench prep`: what happens before the model, how fast it is, and whether the engine waits for it."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, describe
from choral.cli.console import write_stdout
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.prep_overlap import Overlap

DESCRIPTION = """\
Speed of decoding audio, of the mel spectrogram beside peers, and of voice detection; then the same six
requests one after another, in micro-batches and as a pipeline, with the time an engine waits for them.

With --files: how fast each AUDIO (default: made-up sound as mp3, m4a, flac, opus and wav) is prepared on
one core, beside ffmpeg on one thread, and how much faster on two.
"""


def add_prep(actions: argparse._SubParsersAction[Any]) -> None:
    prep: Parser = actions.add_parser(
        "prep",
        help="speed of what happens before the model, and whether the engine waits for it",
        usage="choral bench prep [AUDIO] [options]\n       choral bench prep --files [AUDIO…]",
        description=DESCRIPTION,
    )
    prep.add_argument("audio", nargs="*", metavar="AUDIO", help="what to measure with (default: made-up sound)")
    prep.add_argument("--files", action="store_true", help="speed for each file, beside ffmpeg")
    prep.add_argument(
        "--download", type=float, default=2.0, metavar="SECONDS", help=describe("until a request's audio is there", 2)
    )
    prep.add_argument(
        "--work",
        type=float,
        metavar="SECONDS",
        help="how long the stand-in for an engine works on a request (default: 2)",
    )
    prep.add_argument("--model", metavar="NAME", help="a real model instead of the stand-in")
    prep.set_defaults(run=run_prep, parser=prep)


def run_prep(arguments: argparse.Namespace) -> int:
    if arguments.files:
        return run_files([Path(audio) for audio in arguments.audio])
    if len(arguments.audio) > 1:
        raise UsageError("give one AUDIO, or several with --files")
    for name in ("download", "work"):
        seconds = getattr(arguments, name)
        if seconds is not None and not 0 < seconds <= 600:
            raise UsageError(f"{name} is {seconds!r}; it must be a number of seconds up to 600")
    if arguments.work is not None and arguments.model is not None:
        raise UsageError("--work is for the stand-in and --model for a real engine: give one of them")
    from choral.bench import prep, prep_overlap, report

    audio = arguments.audio[0] if arguments.audio else None
    measured = prep.measure(audio)
    write_stdout(prep.report(measured))
    overlap = measure_overlap(arguments, audio)
    write_stdout(f"\n{prep_overlap.report(overlap)}\n")
    fields = {field.name: getattr(measured, field.name) for field in dataclasses.fields(measured)}
    del fields["machine"]  # the line has it already
    write_stdout(report.json_line("prep", {**fields, "overlap": overlap}) + "\n")
    return 0


def measure_overlap(arguments: argparse.Namespace, audio: str | None) -> Overlap:
    from choral.audio.source import open_source
    from choral.bench.prep import made_up_mp3
    from choral.bench.prep_overlap import measure_overlap, stand_in

    if audio is None:
        body = made_up_mp3()
    else:
        with open_source(audio) as source:
            body = source.file.read()
    if arguments.model is None:
        busy_s = 2.0 if arguments.work is None else arguments.work
        return measure_overlap(body, stand_in(busy_s), f"a stand-in, {busy_s:g} s each", download_s=arguments.download)
    import choral

    with closing(choral.load(arguments.model)) as model:
        return measure_overlap(body, model.transcribe, model.name, download_s=arguments.download)


def run_files(paths: list[Path]) -> int:
    from choral.bench import prep_files
    from choral.bench.report import json_line

    with tempfile.TemporaryDirectory() as folder:
        measured = prep_files.measure_files(paths or prep_files.make_files(Path(folder)))
    fields = dataclasses.asdict(measured) | {"keeps_up": measured.keeps_up, "scales": measured.scales}
    write_stdout(f"{prep_files.report(measured)}\n{json_line('prep files', fields)}\n")
    return 0
