"""`choral submit`: audio to the queue, for workers; with --wait, results as `choral transcribe` writes them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, get_args

from choral.cli.arguments import Parser, describe
from choral.cli.failures import Failure, Failures
from choral.cli.inputs import STDIN, Input, expand, require_stdin
from choral.cli.outputs import write_stdout
from choral.cli.progress import message, open_progress
from choral.cli.queue_crew import QueueCrew
from choral.cli.queue_flags import add_redis_flags, open_client
from choral.cli.transcribe import add_output_flags, add_transcription_flags, choose_sink, read_request
from choral.cli.work import Request, Work
from choral.errors import AudioError, UsageError
from choral.types import Priority

if TYPE_CHECKING:
    from choral.jobs.sync_client import Client

DESCRIPTION = """\
Send audio to the queue in Redis, where workers (`choral worker`) transcribe it, and print the ids of
the jobs, one a line. With --wait stay until they are done, and write results as `choral transcribe` does.

AUDIO is a file, a folder, a pattern, an http(s) URL, or - for standard input, as for `choral transcribe`.
The content of files is sent along; with --by-path only their path is, for storage that workers share.
"""
EPILOG = """\
examples:
  choral submit talk.mp3 --language en --wait
  choral submit recordings/ --priority batch > ids
  choral submit https://example.org/talk.mp3 --callback https://example.org/done
  choral jobs result $(choral submit talk.mp3) --wait

exit codes: as for `choral transcribe`, 8 a job without a result, 9 Redis
"""


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    parser: Parser = commands.add_parser(
        "submit",
        help="send audio to the queue",
        usage="choral submit AUDIO… [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("audio", nargs="+", metavar="AUDIO", help=argparse.SUPPRESS)
    queue = parser.add_argument_group("queue")
    add_redis_flags(queue)
    classes = get_args(Priority)
    queue.add_argument(
        "--priority",
        choices=classes,
        default="interactive",
        metavar="|".join(classes),
        help=describe("interactive jobs go before batch jobs", "interactive"),
    )
    queue.add_argument("--callback", metavar="URL", help="is sent the result of each job when it is done")
    queue.add_argument("--job-id", metavar="ID", help="of a single input; submitting it again does nothing")
    queue.add_argument("--by-path", action="store_true", help="send the paths of files, not their content")
    queue.add_argument("--wait", action="store_true", help="show progress, and write results when they are there")
    add_output_flags(parser.add_argument_group("output (with --wait)"))
    add_transcription_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    request = read_request(arguments)
    if not arguments.wait and (arguments.output_dir is not None or arguments.format != "text"):
        raise UsageError("--format and --output-dir say how results are written: give --wait with them")
    inputs = expand(arguments.audio)
    failures = Failures.telling(inputs.failures)
    if not inputs.found:
        return failures.exit_code
    if arguments.job_id is not None and not inputs.is_single:
        raise UsageError("--job-id goes with a single input")
    require_stdin(inputs)
    open_sink = choose_sink(arguments.output_dir, inputs, request) if arguments.wait else None
    with open_client(arguments) as client:
        job_ids = send(client, inputs.found, arguments, request, failures)
        if open_sink is None or not job_ids:
            return failures.exit_code
        with open_progress(len(job_ids), is_quiet=arguments.quiet) as display:
            work = Work(QueueCrew(client, job_ids), open_sink(display), display, request, failures)
            code = work.run([*job_ids])
        if work.at_work:
            left = " ".join(job_ids[item] for item in work.at_work)
            message(f"choral: the jobs go on without you; see `choral jobs show` with {left}")
        return code


def send(
    client: Client,
    found: tuple[Input, ...],
    arguments: argparse.Namespace,
    request: Request,
    failures: Failures,
) -> dict[Input, str]:
    """The id of each job that was submitted, printed at once unless results are to be printed."""
    job_ids: dict[Input, str] = {}
    for item in found:
        try:
            job_ids[item] = client.submit(
                item.audio,
                request.options,
                priority=arguments.priority,
                callback=arguments.callback,
                job_id=arguments.job_id,
                by_path=arguments.by_path and item.is_file,
                name="stdin" if item.source == STDIN else item.label,
            )
        except AudioError as error:
            failures.tell(Failure(item.label, error))
            continue
        if not arguments.wait:
            write_stdout(f"{job_ids[item]}\n")
    return job_ids
