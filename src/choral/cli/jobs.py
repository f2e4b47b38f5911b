"""`choral jobs list|show|result|cancel|retry|dead|top`: what is in the queue, and what became of it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, describe
from choral.cli.failures import Failure, Failures
from choral.cli.outputs import write_stdout
from choral.cli.progress import clock, message, printable, shorten
from choral.cli.queue_flags import add_redis_flags, open_client
from choral.cli.table import aligned
from choral.errors import ChoralError
from choral.formats import FORMATS, render

if TYPE_CHECKING:
    from choral.jobs.record import JobRecord
    from choral.jobs.sync_client import Client

NAME_WIDTH = 40
Run = Callable[[argparse.Namespace], int]


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    from choral.cli import jobs_top

    parser: Parser = commands.add_parser(
        "jobs",
        help="look at the jobs in the queue, cancel and retry them",
        usage="choral jobs COMMAND …",
        description="Jobs in the queue: what they wait for, how far they are, what became of them.",
    )
    parser.set_defaults(parser=parser)
    actions = parser.add_subparsers(prog="choral jobs", title="commands", metavar="COMMAND")
    _add_limit(_add(actions, "list", run_list, "the newest jobs"))
    show = _add(actions, "show", run_show, "everything about a job", takes_ids=True)
    show.add_argument("--json", action="store_true", help="as JSON, one object a line")
    result = _add(actions, "result", run_result, "the transcript of a job", takes_ids=True)
    result.add_argument(
        "--format", default="text", choices=FORMATS, metavar="NAME", help=describe("|".join(FORMATS), "text")
    )
    result.add_argument("--wait", action="store_true", help="wait for a job that is not done")
    _add(actions, "cancel", run_cancel, "take jobs out of the queue, or stop them", takes_ids=True)
    _add(actions, "retry", run_retry, "start jobs anew that failed, died or were cancelled", takes_ids=True)
    _add_limit(_add(actions, "dead", run_dead, "the dead-letter list: jobs whose every try failed"))
    top = _add(actions, "top", jobs_top.run, "queue, workers and speed, live")
    top.add_argument("--once", action="store_true", help="print it once and exit")


def _add(
    actions: argparse._SubParsersAction[Any], name: str, run: Run, text: str, *, takes_ids: bool = False
) -> Parser:
    parser: Parser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    if takes_ids:
        parser.add_argument("ids", nargs="+", metavar="ID")
    add_redis_flags(parser.add_argument_group("queue"))
    parser.set_defaults(run=run, parser=parser)
    return parser


def _add_limit(parser: Parser) -> None:
    parser.add_argument("--limit", type=int, default=20, metavar="N", help=describe("how many to show", 20))


def run_list(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as client:
        return _print_table(client.list(max(1, arguments.limit)), "there are no jobs")


def run_dead(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as client:
        return _print_table(client.dead(max(1, arguments.limit)), "the dead-letter list is empty")


def run_show(arguments: argparse.Namespace) -> int:
    def show(client: Client, job_id: str) -> str:
        record = client.show(job_id)
        return record.to_json() + "\n" if arguments.json else described(record)

    return _for_each(arguments, show)


def run_result(arguments: argparse.Namespace) -> int:
    from choral.types import SubtitleOptions

    def result(client: Client, job_id: str) -> str:
        transcript = client.wait(job_id) if arguments.wait else client.result(job_id)
        return render(transcript, arguments.format, SubtitleOptions())

    return _for_each(arguments, result)


def run_cancel(arguments: argparse.Namespace) -> int:
    def cancel(client: Client, job_id: str) -> str:
        record = client.cancel(job_id)
        if record.state == "running":
            return f"{job_id} is being stopped\n"
        return f"{job_id} is {record.state}\n"

    return _for_each(arguments, cancel)


def run_retry(arguments: argparse.Namespace) -> int:
    return _for_each(arguments, lambda client, job_id: f"{job_id} is {client.retry(job_id).state} again\n")


def _for_each(arguments: argparse.Namespace, act: Callable[[Client, str], str]) -> int:
    failures = Failures()
    with open_client(arguments) as client:
        for job_id in dict.fromkeys(arguments.ids):
            try:
                write_stdout(act(client, job_id))
            except ChoralError as error:
                failures.tell(Failure(f"job {job_id}", error))
    return failures.exit_code


def _print_table(records: Sequence[JobRecord], empty: str) -> int:
    if not records:
        message(empty)
        return 0
    rows = [("id", "state", "priority", "age", "audio", "tries", "what")]
    rows += [
        (
            record.id,
            record.state,
            record.request.priority,
            clock(max(0.0, time.time() - record.created_at)),
            shorten(record.request.audio.name, NAME_WIDTH),
            str(record.attempts),
            _gist(record),
        )
        for record in records
    ]
    write_stdout(aligned(rows, numbers=(3, 5)))
    return 0


def _gist(record: JobRecord) -> str:
    """What matters most about it, in a few words."""
    if record.state == "succeeded":
        return f"{clock(record.duration_s or 0.0)} of audio in {record.timings.engine_s or 0.0:.1f} s"
    if record.state == "running":
        how_far = f", {clock(record.done_s)} of {clock(record.duration_s)}" if record.duration_s else ""
        return f"{record.phase}{how_far}, with {record.worker}"
    return shorten(record.error or "", 2 * NAME_WIDTH)


def described(record: JobRecord) -> str:
    rows = [(name, printable(value)) for name, value in _facts(record) if value]
    return aligned(rows) + "\n"


def _facts(record: JobRecord) -> Iterator[tuple[str, str]]:
    from choral.jobs.request import changed_options

    request = record.request
    options = changed_options(request.options)
    yield "job", record.id
    yield "state", record.state + (", to be cancelled" if record.is_cancel_wanted else "")
    yield "audio", f"{request.audio.name} ({request.audio.kind})"
    yield "options", " ".join(f"{name}={value!r}" for name, value in options.items()) or "defaults"
    yield "priority", request.priority
    yield "submitted", _date(record.created_at)
    yield "started", _date(record.started_at)
    yield "next try", _date(record.due_at)
    yield "ended", _date(record.ended_at)
    yield "tries", f"{record.attempts}" + (f", workers lost {record.crashes}" if record.crashes else "")
    yield "worker", record.worker or ""
    if record.state == "running":
        yield "phase", record.phase or ""
        yield "progress", f"{clock(record.done_s)} of {clock(record.duration_s)}" if record.duration_s else ""
    for phase in ("queued", "fetch", "decode", "engine"):
        spent_s = getattr(record.timings, f"{phase}_s")
        yield phase, "" if spent_s is None else f"{spent_s:.2f} s"
    yield "duration", "" if record.duration_s is None else f"{record.duration_s:.2f} s"
    yield "error", f"{record.error} ({record.error_kind})" if record.error else ""
    yield "callback", _callback(record)
    for attempt in record.webhook_attempts:
        yield (
            f"webhook {_date(attempt.at)}",
            f"{attempt.status or 'no answer'}{': ' if attempt.error else ''}{attempt.error or ''}",
        )


def _callback(record: JobRecord) -> str:
    from choral.remote.transport import shown

    if record.request.callback is None:
        return ""
    return f"{shown(record.request.callback)} ({record.webhook or 'when it is done'})"


def _date(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
