"""`choral submit`: sends audio to the queue; with --wait, writes the results as `choral transcribe` does."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, get_args

from choral.cli.arguments import Parser, describe
from choral.cli.batch_run import BatchOptions, BatchRun
from choral.cli.console import message, write_stdout
from choral.cli.executors import QueueExecutor
from choral.cli.failures import Failure, Failures
from choral.cli.inputs import STDIN, Input, Inputs, expand, require_stdin
from choral.cli.progress import open_progress
from choral.cli.shared_flags import add_redis_flags, open_client
from choral.cli.transcribe import add_output_flags, add_transcription_flags, choose_sink, read_batch_options
from choral.errors import AudioError, UsageError
from choral.options import Priority

if TYPE_CHECKING:
    from choral.jobs.sync_client import Client

USAGE = "choral submit AUDIO… [options]"
DESCRIPTION = """\
Send audio to the queue in Redis, where workers (`choral worker`) transcribe it, and print the job ids,
one per line. With --wait, wait for the jobs and write results as `choral transcribe` does.

AUDIO is a file, a folder, a pattern, an http(s) URL, or - for standard input, as for `choral transcribe`.
The content of files is sent; with --by-path only their path, for storage that the workers can read.
"""
EPILOG = """\
examples:
  choral submit talk.mp3 --language en --wait
  choral submit recordings/ --priority batch > ids
  choral submit https://example.org/talk.mp3 --callback https://example.org/done
  choral jobs result $(choral submit talk.mp3) --wait
  choral submit book.m4b --align book.txt --wait --format srt

exit codes: as for `choral transcribe`; 8 a job has no result, 9 Redis
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("audio", nargs="+", metavar="AUDIO", help=argparse.SUPPRESS)
    queue = parser.add_argument_group("queue")
    add_redis_flags(queue)
    priorities = get_args(Priority)
    queue.add_argument(
        "--priority",
        choices=priorities,
        default="interactive",
        metavar="|".join(priorities),
        help=describe("interactive jobs go before batch jobs", "interactive"),
    )
    queue.add_argument("--callback", metavar="URL", help="URL that receives the result of each job")
    queue.add_argument("--job-id", metavar="ID", help="job id, for a single input; a second submit has no effect")
    queue.add_argument("--by-path", action="store_true", help="send the paths of files, not their content")
    queue.add_argument("--align", metavar="TEXT", help="file with the text to align, for a single input")
    queue.add_argument("--wait", action="store_true", help="show progress, and write results when the jobs are done")
    add_output_flags(parser.add_argument_group("output (with --wait)"))
    add_transcription_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    options = read_batch_options(arguments)
    if not arguments.wait and (arguments.output_dir is not None or arguments.format != "text"):
        raise UsageError("--format and --output-dir apply to results: give --wait with them")
    inputs, failures = expand(arguments.audio), Failures()
    failures.report(*inputs.failures)
    if not inputs.found:
        return failures.exit_code
    if arguments.job_id is not None and not inputs.is_single:
        raise UsageError("--job-id is for a single input")
    text = read_align(arguments, inputs)
    require_stdin(inputs)
    open_sink = choose_sink(arguments.output_dir, inputs, options) if arguments.wait else None
    with open_client(arguments) as client:
        job_ids = submit_all(client, inputs.found, arguments, options, failures, text)
        if open_sink is None or not job_ids:
            return failures.exit_code
        with open_progress(len(job_ids), is_quiet=arguments.quiet) as display:
            batch = BatchRun(QueueExecutor(client, job_ids), open_sink(display), display, options, failures)
            code = batch.run([*job_ids])
        if batch.running:
            unfinished = " ".join(job_ids[item] for item in batch.running)
            message(f"choral: the jobs stay in the queue; see `choral jobs show {unfinished}`")
        return code


def read_align(arguments: argparse.Namespace, inputs: Inputs) -> str | None:
    """The text of --align."""
    if arguments.align is None:
        return None
    if not inputs.is_single:
        raise UsageError("--align is for a single input: give one recording with its text")
    from choral.cli.align import read_text

    return read_text(arguments.align, is_stdin_taken=inputs.found[0].source == STDIN)


def submit_all(
    client: Client,
    items: tuple[Input, ...],
    arguments: argparse.Namespace,
    options: BatchOptions,
    failures: Failures,
    text: str | None,
) -> dict[Input, str]:
    """Submit every input and return the job ids; without --wait each id is printed at once."""
    job_ids: dict[Input, str] = {}
    for item in items:
        try:
            job_ids[item] = client.submit(
                item.audio,
                options.options,
                priority=arguments.priority,
                callback=arguments.callback,
                job_id=arguments.job_id,
                by_path=arguments.by_path and item.is_file,
                name="stdin" if item.source == STDIN else item.label,
                align=text,
            )
        except AudioError as error:
            failures.report(Failure(item.label, error))
            continue
        if not arguments.wait:
            write_stdout(f"{job_ids[item]}\n")
    return job_ids
