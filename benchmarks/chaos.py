"""Are jobs lost when workers die? Kills workers every few seconds and Redis halfway through, then checks every result.

Starts a Redis, a file server with a webhook receiver, and real workers on this machine. Jobs name their audio by URL
or by path, or carry it. Every result must equal what the model returns for the same file, and every webhook must
arrive. FOLDER has clips of speech of at most 30 s; without one, five sentences are downloaded.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from choral.api import Model
from choral.bench.report import json_line
from choral.cli.arguments import Parser, describe
from choral.cli.bench import add_folder, find_audio, progress, require_counts
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import load_model, machine_arguments
from choral.errors import EngineError, RedisUnavailable, UsageError
from choral.jobs.record import JobRecord
from choral.jobs.sync_client import Client
from choral.options import Priority
from choral.transcript import Transcript
from support.http_stub import HttpStub
from support.redis_server import RedisServer
from support.script import run_script

SECRET = "a secret for this run"
POLL_S = 0.5
# Every kill counts as a crash of the jobs in progress, so the crash limit is set too high to be reached. Small
# batches let some jobs finish before the next kill.
WORKER_FLAGS = ("--claim-after-s=4", "--max-crashes=1000", "--batch-size=2", "--threads=1", "--webhook-retry-s=0.5")


@dataclass(frozen=True)
class ChaosSettings:
    n_jobs: int = 200
    n_workers: int = 3
    kill_every_s: float = 5.0
    limit_s: float = 1800.0  # jobs that have not ended by then count as lost
    seed: int = 0


@dataclass(frozen=True)
class ChaosResult:
    jobs: int
    results: int
    equal: int  # results equal to the model's own transcript of the file
    webhooks: int  # jobs whose signed webhook arrived
    webhooks_again: int  # webhooks that arrived more than once, under the same key
    dead: int
    kills: int
    redis_restarts: int
    claims: int  # jobs taken over from a killed worker
    spent_s: float

    @property
    def is_nothing_lost(self) -> bool:
        return self.results == self.equal == self.webhooks == self.jobs


def measure(
    settings: ChaosSettings,
    paths: Sequence[Path],
    model: Model,
    flags: Sequence[str],
    folder: Path,
    log: Callable[[str], None],
) -> ChaosResult:
    log(f"transcribing {len(paths)} files for reference")
    expected = {path: model.transcribe(path) for path in paths}
    model.close()
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(folder))
        http_stub = stack.enter_context(HttpStub(SECRET))
        client = stack.enter_context(Client(redis.url))
        workers = stack.enter_context(WorkerProcesses(settings, flags, paths, redis.url, http_stub.host))
        job_paths = {
            submit(client, http_stub, paths[i % len(paths)], i): paths[i % len(paths)] for i in range(settings.n_jobs)
        }
        started_s = time.monotonic()
        n_restarts = wait_with_faults(settings, list(job_paths), redis, workers, client, log)
        spent_s = time.monotonic() - started_s
        records = {record.id: record for record in retry_redis(lambda: client.show_all(list(job_paths)))}
        results = {job_id: client.result(job_id) for job_id, record in records.items() if record.state == "succeeded"}
        return ChaosResult(
            jobs=settings.n_jobs,
            results=len(results),
            equal=sum(is_same_transcript(results[job_id], expected[job_paths[job_id]]) for job_id in results),
            webhooks=len(http_stub.deliveries.keys() & job_paths.keys()),
            webhooks_again=sum(n_times > 1 for n_times in http_stub.deliveries.values()),
            dead=sum(record.state == "dead" for record in records.values()),
            kills=workers.n_kills,
            redis_restarts=n_restarts,
            claims=sum(record.crashes for record in records.values()),
            spent_s=spent_s,
        )


def submit(client: Client, http_stub: HttpStub, path: Path, index: int) -> str:
    """Submit by URL, by path and with the audio in the job, in turn."""
    priority: Priority = "interactive" if index % 2 else "batch"
    callback = f"{http_stub.url}/webhook"
    if index % 3 == 0:
        return client.submit(http_stub.serve(path), callback=callback, priority=priority)
    return client.submit(path, callback=callback, priority=priority, by_path=index % 3 == 1)


def is_same_transcript(one: Transcript, other: Transcript) -> bool:
    """Equal in text, tokens and times; the last digits of scores depend on the rest of the batch."""
    segments = [[(s.start, s.end, s.text, s.tokens) for s in transcript.segments] for transcript in (one, other)]
    return one.text == other.text and segments[0] == segments[1]


def retry_redis(request: Callable[[], Sequence[JobRecord]]) -> Sequence[JobRecord]:
    """Repeat the request while Redis is restarting."""
    while True:
        try:
            return request()
        except RedisUnavailable:
            time.sleep(POLL_S)


class WorkerProcesses:
    """Keeps `n_workers` worker processes running."""

    def __init__(
        self, settings: ChaosSettings, flags: Sequence[str], paths: Sequence[Path], redis_url: str, allowed_host: str
    ) -> None:
        roots = ",".join(sorted({str(path.parent) for path in paths}))
        self._command = [sys.executable, "-m", "choral", "worker", "--quiet", *flags, *WORKER_FLAGS]
        self._command += ["--roots", roots, "--allowed-hosts", allowed_host]
        secrets = {"CHORAL_REDIS": redis_url, "CHORAL_WEBHOOK_SECRET": SECRET}
        self._environment = {**os.environ, **secrets, "OMP_NUM_THREADS": "1"}
        self._processes = [self._start() for _ in range(settings.n_workers)]
        self._random = random.Random(settings.seed)
        self.n_kills = 0

    def kill_one(self) -> None:
        """Kill a random worker without warning, and start another."""
        index = self._random.randrange(len(self._processes))
        self._kill(self._processes[index])
        self._processes[index] = self._start()
        self.n_kills += 1

    def require_alive(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise EngineError(f"a worker exited by itself with code {process.returncode}: see above")

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            self._kill(process)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env=self._environment)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()


def wait_with_faults(
    settings: ChaosSettings,
    job_ids: Sequence[str],
    redis: RedisServer,
    workers: WorkerProcesses,
    client: Client,
    log: Callable[[str], None],
) -> int:
    """Kill workers and restart Redis until all jobs have ended and sent their webhooks; return the restart count."""
    draw = random.Random(settings.seed + 1)
    deadline_s = time.monotonic() + settings.limit_s
    next_kill_s = time.monotonic() + settings.kill_every_s * draw.uniform(0.5, 1.5)
    n_restarts = n_reported = 0
    open_ids = set(job_ids)
    while time.monotonic() < deadline_s:
        records = retry_redis(partial(client.show_all, [*open_ids]))
        open_ids -= {record.id for record in records if record.has_ended and record.webhook != "pending"}
        if not open_ids:
            break
        n_ended = len(job_ids) - len(open_ids)
        if n_ended >= n_reported + max(1, len(job_ids) // 10):
            n_reported = n_ended
            log(f"{n_ended} of {len(job_ids)} jobs ended and sent their webhooks")
        if n_restarts == 0 and n_ended >= len(job_ids) // 2:
            log("killing and restarting Redis")
            redis.stop(signal.SIGKILL)
            redis.start()
            n_restarts = 1
        if time.monotonic() > next_kill_s:
            workers.kill_one()
            log("killed a worker and started another")
            next_kill_s = time.monotonic() + settings.kill_every_s * draw.uniform(0.5, 1.5)
        workers.require_alive()
        time.sleep(POLL_S)
    return n_restarts


def result_table(result: ChaosResult) -> str:
    rows = [
        ("jobs", str(result.jobs)),
        ("results", str(result.results)),
        ("equal to transcribe", str(result.equal)),
        ("webhooks delivered", f"{result.webhooks} keys, {result.webhooks_again} of them more than once"),
        ("dead letters", str(result.dead)),
        ("workers killed", str(result.kills)),
        ("Redis restarted", str(result.redis_restarts)),
        ("jobs taken over", str(result.claims)),
        ("seconds", f"{result.spent_s:.1f}"),
    ]
    return f"{format_table(rows)}\n{'nothing was lost' if result.is_nothing_lost else 'SOMETHING WAS LOST'}\n"


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument("--jobs", type=int, default=200, metavar="N", help=describe("jobs to submit", 200))
    parser.add_argument("--workers", type=int, default=3, metavar="N", help=describe("workers running at a time", 3))
    parser.add_argument(
        "--kill-every-s", type=float, default=5.0, metavar="SECONDS", help=describe("mean time between kills", 5)
    )


def run(arguments: argparse.Namespace) -> int:
    require_counts(arguments, jobs=1, workers=1)
    if not arguments.kill_every_s > 0:
        raise UsageError("kill-every-s must be a number of seconds above 0")
    paths = [path.resolve() for path in find_audio(arguments.folder, arguments.quiet)][: arguments.jobs]
    settings = ChaosSettings(arguments.jobs, arguments.workers, arguments.kill_every_s)
    model = load_model(arguments)
    with tempfile.TemporaryDirectory(prefix="choral-chaos-") as folder:
        result = measure(settings, paths, model, machine_arguments(arguments), Path(folder), progress(arguments))
    write_stdout(result_table(result))
    write_stdout(json_line("chaos", {"tally": result, "nothing_lost": result.is_nothing_lost}) + "\n")
    return 0 if result.is_nothing_lost else 1


if __name__ == "__main__":
    run_script(
        __doc__, add_arguments, run, epilog="exit codes: 0 nothing was lost, 1 a result or webhook was lost or wrong"
    )
