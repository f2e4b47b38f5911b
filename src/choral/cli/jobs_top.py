"""`choral jobs top`: how much waits, who works on it, and how fast, redrawn every second."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from choral.cli.outputs import write_stdout
from choral.cli.progress import clock
from choral.cli.queue_flags import open_client
from choral.cli.table import aligned

if TYPE_CHECKING:
    from choral.jobs.record import WorkerStatus
    from choral.jobs.sync_client import Client

EVERY_S = 1.0


def run(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as client:
        if arguments.once or not (sys.stdout and sys.stdout.isatty()):
            write_stdout(view(client))
            return 0
        from rich.live import Live
        from rich.text import Text

        with Live(Text(view(client), no_wrap=True), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(EVERY_S)
                live.update(Text(view(client), no_wrap=True), refresh=True)


def view(client: Client) -> str:
    counts, workers = client.counts(), client.workers()
    waiting = ", ".join(f"{n_jobs} {priority}" for priority, n_jobs in counts.waiting.items())
    audio_per_s = sum(worker.audio_per_s for worker in workers)
    facts = [
        ("queue", f"{waiting}; {counts.held} with workers, {counts.delayed} wait for their next try"),
        (
            "ended",
            f"{counts.ended} remembered, {counts.dead} on the dead-letter list, {counts.webhooks} webhooks to send",
        ),
        ("speed", f"{audio_per_s:.1f} hours of audio an hour, {len(workers)} workers"),
    ]
    head = f"choral jobs, {client.shown}, {time.strftime('%H:%M:%S')}\n\n{aligned(facts)}\n"
    if not workers:
        return head + "no workers: start one with `choral worker`\n"
    rows = [("worker", "model", "device", "up", "prep", "engine", "busy", "hours/hour", "done", "failed")]
    return head + aligned(rows + [_row(worker) for worker in workers], numbers=range(3, 10))


def _row(worker: WorkerStatus) -> tuple[str, ...]:
    return (
        worker.name + (" (stopping)" if worker.is_stopping else ""),
        worker.model,
        worker.device,
        clock(max(0.0, time.time() - worker.started_at)),
        str(worker.in_prep),
        str(worker.in_engine),
        f"{worker.busy_share:.0%}",
        f"{worker.audio_per_s:.1f}",
        str(worker.succeeded),
        str(worker.failed),
    )
