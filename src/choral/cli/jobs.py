"""`choral jobs list|show|result|cancel|retry|dead|top`: shows and controls the jobs in the queue."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser, Run, add_subcommand, add_subcommands, describe
from choral.cli.console import format_clock, format_table, message, printable, shorten, write_stdout
from choral.cli.failures import Failure, Failures
from choral.cli.shared_flags import add_redis_flags, open_client
from choral.errors import ChoralError, UsageError
from choral.formats import FORMATS, render

if TYPE_CHECKING:
    from choral.jobs.record import JobRecord, WorkerStatus
    from choral.jobs.sync_client import Client

USAGE = "choral jobs COMMAND …"
DESCRIPTION = "Jobs in the queue: their state, progress and results."
NAME_WIDTH = 40
REFRESH_S = 1.0


def add_arguments(parser: Parser) -> None:
    commands = add_subcommands(parser)

    def add(name: str, run: Run, text: str, *, takes_ids: bool = False, has_limit: bool = False) -> Parser:
        command = add_subcommand(commands, name, run, text)
        if takes_ids:
            command.add_argument("ids", nargs="+", metavar="ID")
        add_redis_flags(command.add_argument_group("queue"))
        if has_limit:
            command.add_argument("--limit", type=int, default=20, metavar="N", help=describe("number of jobs", 20))
        return command

    add("list", run_list, "list the newest jobs", has_limit=True)
    show = add("show", run_show, "show everything about jobs", takes_ids=True)
    show.add_argument("--json", action="store_true", help="print JSON, one object per line")
    result = add("result", run_result, "print the transcripts of jobs", takes_ids=True)
    result.add_argument(
        "--format", default="text", choices=FORMATS, metavar="NAME", help=describe("|".join(FORMATS), "text")
    )
    result.add_argument("--wait", action="store_true", help="wait for jobs that are not done")
    add("cancel", run_cancel, "remove jobs from the queue, or stop them", takes_ids=True)
    add("retry", run_retry, "restart jobs that failed, died or were cancelled", takes_ids=True)
    add("dead", run_dead, "list the dead letters: jobs that failed every attempt", has_limit=True)
    top = add("top", run_top, "show queue, workers and speed, live")
    top.add_argument("--once", action="store_true", help="print once and exit")


def run_list(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as client:
        return _print_table(client.list(max(1, arguments.limit)), "there are no jobs")


def run_dead(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as client:
        return _print_table(client.dead(max(1, arguments.limit)), "the dead-letter list is empty")


def run_show(arguments: argparse.Namespace) -> int:
    def show(client: Client, job_id: str) -> str:
        record = client.show(job_id)
        return record.to_json() + "\n" if arguments.json else _format_record(record)

    return _for_each(arguments, show)


def run_result(arguments: argparse.Namespace) -> int:
    from choral.options import SubtitleOptions

    def result(client: Client, job_id: str) -> str:
        transcript = client.wait(job_id) if arguments.wait else client.result(job_id)
        if FORMATS[arguments.format].needs_speakers and not client.show(job_id).request.options.diarize:
            raise UsageError(f"{arguments.format} has the turns of speakers: submit the job with --diarize")
        return render(transcript, arguments.format, SubtitleOptions(), job_id)

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
                failures.report(Failure(f"job {job_id}", error))
    return failures.exit_code


def _print_table(records: Sequence[JobRecord], empty: str) -> int:
    if not records:
        message(empty)
        return 0
    rows = [("id", "state", "priority", "age", "audio", "tries", "details")]
    rows += [
        (
            record.id,
            record.state,
            record.request.priority,
            format_clock(max(0.0, time.time() - record.created_at)),
            shorten(record.request.audio.name, NAME_WIDTH),
            str(record.attempts),
            _summary(record),
        )
        for record in records
    ]
    write_stdout(format_table(rows, numbers=(3, 5)))
    return 0


def _summary(record: JobRecord) -> str:
    """The most important fact about a job, on one line."""
    if record.state == "succeeded":
        return f"{format_clock(record.duration_s or 0.0)} of audio in {record.timings.engine_s or 0.0:.1f} s"
    if record.state == "running":
        progress = _progress(record)
        return f"{record.phase}{', ' if progress else ''}{progress}, with {record.worker}"
    return shorten(record.error or "", 2 * NAME_WIDTH)


def _progress(record: JobRecord) -> str:
    return f"{format_clock(record.done_s)} of {format_clock(record.duration_s)}" if record.duration_s else ""


def _format_record(record: JobRecord) -> str:
    rows = [(name, printable(value)) for name, value in _facts(record) if value]
    return format_table(rows) + "\n"


def _facts(record: JobRecord) -> Iterator[tuple[str, str]]:
    request = record.request
    options = request.options.changed()
    if request.options.voices:
        options["voices"] = [*request.options.voices]  # names without their 256 numbers
    yield "job", record.id
    yield "state", record.state + (", to be cancelled" if record.is_cancel_requested else "")
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
        yield "progress", _progress(record)
    for phase in ("queued", "fetch", "decode", "engine"):
        elapsed_s = getattr(record.timings, f"{phase}_s")
        yield phase, "" if elapsed_s is None else f"{elapsed_s:.2f} s"
    yield "duration", "" if record.duration_s is None else f"{record.duration_s:.2f} s"
    yield "error", f"{record.error} ({record.error_kind})" if record.error else ""
    yield "callback", _callback(record)
    for attempt in record.webhook_attempts:
        yield (
            f"webhook {_date(attempt.at)}",
            f"{attempt.status or 'no response'}{': ' if attempt.error else ''}{attempt.error or ''}",
        )


def _callback(record: JobRecord) -> str:
    from choral.remote.urls import redact_url

    if record.request.callback is None:
        return ""
    return f"{redact_url(record.request.callback)} ({record.webhook or 'when it is done'})"


def _date(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def run_top(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as client:
        if arguments.once or not (sys.stdout and sys.stdout.isatty()):
            write_stdout(_top_view(client))
            return 0
        from rich.live import Live
        from rich.text import Text

        with Live(Text(_top_view(client), no_wrap=True), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(REFRESH_S)
                live.update(Text(_top_view(client), no_wrap=True), refresh=True)


def _top_view(client: Client) -> str:
    counts, workers = client.counts(), client.workers()
    waiting = ", ".join(f"{n_jobs} {priority}" for priority, n_jobs in counts.waiting.items())
    audio_per_s = sum(worker.audio_per_s for worker in workers)
    facts = [
        ("queue", f"{waiting}; {counts.held} with workers, {counts.delayed} waiting for a retry"),
        (
            "ended",
            f"{counts.ended} stored, {counts.dead} on the dead-letter list, {counts.webhooks} webhooks to send",
        ),
        ("speed", f"{audio_per_s:.1f} hours of audio per hour, {len(workers)} workers"),
    ]
    head = f"choral jobs, {client.address}, {time.strftime('%H:%M:%S')}\n\n{format_table(facts)}\n"
    if not workers:
        return head + "no workers: start one with `choral worker`\n"
    rows = [("worker", "model", "device", "up", "prep", "engine", "busy", "hours/hour", "done", "failed")]
    return head + format_table(rows + [_worker_row(worker) for worker in workers], numbers=range(3, 10))


def _worker_row(worker: WorkerStatus) -> tuple[str, ...]:
    return (
        worker.name + (" (stopping)" if worker.is_stopping else ""),
        worker.model,
        worker.device,
        format_clock(max(0.0, time.time() - worker.started_at)),
        str(worker.in_prep),
        str(worker.in_engine),
        f"{worker.busy_share:.0%}",
        f"{worker.audio_per_s:.1f}",
        str(worker.succeeded),
        str(worker.failed),
    )
