"""`choral bench files`: from files on disk to text, as `choral transcribe FOLDER` does it."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser, describe
from choral.cli.bench import (
    add_folder,
    add_quiet,
    add_random_weights,
    find_short_clips,
    progress,
    read_counts,
    require_counts,
)
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import add_machine_flags, add_processes_flag, engine_settings, load_model
from choral.options import TranscribeOptions

if TYPE_CHECKING:
    from choral.api import Model
    from choral.bench.files_load import FilesResult

USAGE = "choral bench files [FOLDER] [options]"
DESCRIPTION = """\
Throughput from files on disk to text: mp3 recordings, joined from the speech in FOLDER, all at once and in
batched mode. The table shows how busy the engine was, and how many CPU cores all processes used. One long
recording is --files 1 --minutes 60.

Without a FOLDER, five sentences are downloaded. With --random-weights the engine has random weights in the
shape of a model, and every window gets 100 tokens: the text is nonsense, the speed is real. The rate
of the engine alone is then measured too, in the same run.
"""
EPILOG = None
FILES, MINUTES, MAX_FILES, MAX_MINUTES = "1,4,16,64", 10, 4096, 1440


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument(
        "--files", default=FILES, metavar="N,N,…", help=describe("how many, one load after another", FILES)
    )
    parser.add_argument(
        "--minutes", type=int, default=MINUTES, metavar="N", help=describe("length of each file", str(MINUTES))
    )
    parser.add_argument(
        "--stereo", action="store_true", help="files of 44.1 kHz in stereo; otherwise of 16 kHz in mono"
    )
    add_random_weights(parser)
    add_quiet(parser)
    machine = parser.add_argument_group("model and machine")
    add_machine_flags(machine)
    add_processes_flag(machine)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from choral.bench import files_load
    from choral.bench.report import json_line

    require_counts(arguments, minutes=1)
    counts, log = read_counts("files", arguments.files, MAX_FILES, FILES), progress(arguments)
    clips = find_short_clips(arguments.folder, arguments.quiet)
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder, closing(open_model(arguments)) as model:
        log(f"writing {max(counts)} files of {arguments.minutes} minutes")
        form = files_load.STEREO_MP3 if arguments.stereo else files_load.MONO_MP3
        paths = files_load.write_files(clips, Path(folder), max(counts), 60.0 * arguments.minutes, form)
        options = TranscribeOptions(mode="batched", language="en")
        engine_rate = None
        if arguments.random_weights:
            options = files_load.forced_options(model)
            log("the engine alone")
            engine_rate = files_load.saturated_windows_per_s(model)
        results = []
        for n_files in counts:
            log(f"{n_files} files")
            results.append(files_load.measure_files(model, paths[:n_files], options, arguments.processes))
        plan = str(model.runtime(max(counts), arguments.processes).plan)
        write_stdout(f"{model.name} on {model.device} in {model.compute_type}; {plan}\n\n" + table(results))
        if engine_rate is not None:
            write_stdout(engine_line(engine_rate, results))
    fields = {
        "model": model.name,
        "device": model.device,
        "compute_type": model.compute_type,
        "plan": plan,
        "minutes": arguments.minutes,
        "stereo": arguments.stereo,
        "engine_windows_per_s": engine_rate,
        "results": results,
    }
    write_stdout(json_line("files", fields) + "\n")
    return 0


def open_model(arguments: argparse.Namespace) -> Model:
    if arguments.random_weights is None:
        return load_model(arguments, optimize_for="throughput")
    from choral.bench.files_load import random_model

    return random_model(arguments.random_weights, engine_settings(arguments))


def table(results: Sequence[FilesResult]) -> str:
    rows = [
        (
            str(result.n_files),
            f"{result.times_real_time:,.0f} ×",
            f"{result.wall_s:.2f} s",
            f"{result.first_text_s:.2f} s",
            f"{result.windows / result.wall_s:.1f}",
            f"{result.engine_busy:.0%}",
            f"{result.cores:.1f}",
        )
        for result in results
    ]
    heading = ("files", "real time", "time", "first text", "windows/s", "engine busy", "CPU cores")
    return format_table([heading, *rows])


def engine_line(rate: float, results: Sequence[FilesResult]) -> str:
    best = max(result.windows / result.wall_s for result in results)
    return f"\nthe engine alone: {rate:.1f} windows/s; files reach {best / rate:.0%} of it\n"
