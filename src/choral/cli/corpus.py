"""`choral corpus transcribe`: a corpus to a folder of Parquet files, on a Ray cluster."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from choral import errors
from choral.cli.arguments import Parser, add_flags, add_subcommand, add_subcommands, given_options, read_options
from choral.cli.console import format_elapsed, format_speed, format_time_left, is_terminal, message
from choral.cli.failures import Failure, Failures
from choral.cli.shared_flags import add_machine_flags, engine_settings
from choral.cli.transcribe import FLAGS
from choral.options import TranscribeOptions

if TYPE_CHECKING:
    from choral.ray.corpus_run import CorpusProgress

USAGE = "choral corpus transcribe INPUT OUTPUT [options]"
DESCRIPTION = "Transcribe corpora of any size on a Ray cluster."
TRANSCRIBE_DESCRIPTION = """\
Transcribe a corpus on a Ray cluster, with an engine per GPU.

INPUT is a folder (every audio and video file, .tar and .parquet in it, at any depth), a pattern, one such
file, a list of these (.txt, one per line), or a URL: http, https, or any that fsspec knows, as in s3://bucket/talks.
A .tar holds audio files, as WebDataset writes them; a .parquet has a column of audio bytes.

OUTPUT is a folder or URL of Parquet files with a row for each recording: source, text, segments, words,
speakers, language, duration, or an error. Run the same command again after an interruption, or when
INPUT has grown: rows that are there are not made again.
"""
EPILOG = """\
examples:
  choral corpus transcribe talks/ transcripts/ --model large-v3-turbo
  choral corpus transcribe s3://bucket/shards s3://bucket/texts --address auto --word-timestamps

exit codes: 0 success, 2 usage, 3 audio, 4 model, 5 disk, 6 engine, 7 missing package, 10 cluster, 1 several
kinds of failure
"""


def add_arguments(parser: Parser) -> None:
    commands = add_subcommands(parser)
    add_transcribe(
        add_subcommand(
            commands,
            "transcribe",
            run_transcribe,
            "transcribe a corpus to Parquet",
            usage=USAGE,
            description=TRANSCRIBE_DESCRIPTION,
            epilog=EPILOG,
        )
    )


def add_transcribe(parser: Parser) -> None:
    parser.add_argument("input", metavar="INPUT", help=argparse.SUPPRESS)
    parser.add_argument("output", metavar="OUTPUT", help=argparse.SUPPRESS)
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of the Ray cluster: HOST:PORT of its head node, or auto for one that runs on this machine "
        "(default: a cluster of this machine alone, started for this command)",
    )
    cluster.add_argument(
        "--engines", type=int, metavar="N", help="number of engines (default: one per GPU or, without GPUs, per node)"
    )
    corpus = parser.add_argument_group("corpus")
    corpus.add_argument(
        "--audio-column",
        metavar="NAME",
        help="column of .parquet files with the audio, as bytes or as {bytes, path} (default: audio or bytes)",
    )
    corpus.add_argument(
        "--retry-errors", action="store_true", help="transcribe rows with errors again, also those that may not pass"
    )
    corpus.add_argument("--quiet", action="store_true", help="only errors: no progress")
    add_machine_flags(parser.add_argument_group("model and machine"))
    for heading, names in FLAGS.items():
        add_flags(parser.add_argument_group(heading), TranscribeOptions, names)


def run_transcribe(arguments: argparse.Namespace) -> int:
    from choral.ray.corpus_run import CorpusRequest, transcribe_corpus

    request = CorpusRequest(
        source=arguments.input,
        target=arguments.output,
        options=read_options(given_options(arguments, TranscribeOptions)),
        model=arguments.model,
        settings=engine_settings(arguments),
        engines=arguments.engines,
        address=arguments.address,
        audio_column=arguments.audio_column,
        retry_errors=arguments.retry_errors,
    )
    failures, started_s, last = Failures(), time.monotonic(), None
    with _bar(is_quiet=arguments.quiet) as show:
        for last in transcribe_corpus(request):
            show(last)
            for source, kind, text in last.errors:
                failures.report(Failure(source, getattr(errors, kind)(text)))
    if last is not None and not arguments.quiet:
        message(f"choral: {_summary(last, time.monotonic() - started_s)}")
    return failures.exit_code


def _summary(progress: CorpusProgress, elapsed_s: float) -> str:
    parts = [
        f"{progress.n_rows:,} recordings",
        f"{progress.audio_s / 3600:,.2f} h of audio in {format_elapsed(elapsed_s)}",
        format_speed(progress.audio_s, elapsed_s),
        f"{progress.n_errors:,} errors",
        f"{progress.n_skipped:,} done before",
    ]
    return ", ".join(part for part in parts if part)


@contextmanager
def _bar(*, is_quiet: bool) -> Iterator[Callable[[CorpusProgress], None]]:
    """A bar with what was committed, if standard error is a terminal."""
    if is_quiet or not is_terminal():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    started_s = time.monotonic()
    columns = (BarColumn(24), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting the engines", total=None)

        def show(progress: CorpusProgress) -> None:
            elapsed_s = time.monotonic() - started_s
            total = progress.total_bytes or None
            left = format_time_left(elapsed_s, progress.done_bytes / total) if total else ""
            text = ", ".join(part for part in (_summary(progress, elapsed_s), left) if part)
            bar.update(task, total=total, completed=progress.done_bytes, description=text)

        yield show
