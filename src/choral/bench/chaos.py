"""Workers that die, a Redis that restarts, and whether anything is lost: real processes, a real model, real speech.

Jobs by address, by path and with their audio inside wait in a Redis of our own. Workers take them; every few seconds
one is killed without warning and another is started; half-way Redis is killed and started again. At the end every
result must equal what the model says of the same file, and every webhook must have come, counted by its key.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from choral.bench.redis_server import RedisServer
from choral.bench.web_end import WebEnd
from choral.errors import EngineError, RedisUnavailable
from choral.jobs.record import JobRecord
from choral.jobs.sync_client import Client
from choral.types import Priority, Transcript

if TYPE_CHECKING:
    from choral.api import Model

SECRET = "a secret for this run"
EVERY_S = 0.5
# A worker that is killed from outside counts as one that its jobs ended: here that is never their fault.
# Few jobs in hand, so that some are done before the next worker is killed.
WORKER_FLAGS = ("--claim-after-s=4", "--max-crashes=1000", "--batch-size=2", "--threads=1", "--webhook-retry-s=0.5")


@dataclass(frozen=True)
class Plan:
    n_jobs: int = 200
    n_workers: int = 3
    kill_every_s: float = 5.0
    limit_s: float = 1800.0  # after which what is not done counts as lost
    seed: int = 0


@dataclass(frozen=True)
class Tally:
    jobs: int
    results: int
    equal: int  # of the results, to what the model says of the same file
    webhooks: int  # jobs whose webhook came, signed
    webhooks_again: int  # that came more than once, under the same key
    dead: int
    kills: int
    redis_restarts: int
    claims: int  # jobs that were taken over from a worker that was killed
    spent_s: float

    @property
    def is_nothing_lost(self) -> bool:
        return self.results == self.equal == self.webhooks == self.jobs


def measure(
    plan: Plan, paths: Sequence[Path], model: Model, machine: Sequence[str], folder: Path, tell: Callable[[str], None]
) -> Tally:
    tell(f"transcribing {len(paths)} files, to compare with")
    expected = {path: model.transcribe(path) for path in paths}
    model.close()
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(folder))
        web = stack.enter_context(WebEnd(SECRET))
        client = stack.enter_context(Client(redis.url))
        crew = stack.enter_context(WorkerCrew(redis.url, machine, paths, plan, web))
        jobs = {submit(client, web, paths[i % len(paths)], i): paths[i % len(paths)] for i in range(plan.n_jobs)}
        started_s = time.monotonic()
        n_restarts = Upheaval(plan, redis, crew, client, tell).last_until_done(list(jobs))
        spent_s = time.monotonic() - started_s
        records = {record.id: record for record in patiently(lambda: client.show_all(list(jobs)))}
        texts = {job_id: client.result(job_id) for job_id, record in records.items() if record.state == "succeeded"}
        return Tally(
            jobs=plan.n_jobs,
            results=len(texts),
            equal=sum(is_same(texts[job_id], expected[jobs[job_id]]) for job_id in texts),
            webhooks=len(web.deliveries.keys() & jobs.keys()),
            webhooks_again=sum(n_times > 1 for n_times in web.deliveries.values()),
            dead=sum(record.state == "dead" for record in records.values()),
            kills=crew.n_kills,
            redis_restarts=n_restarts,
            claims=sum(record.crashes for record in records.values()),
            spent_s=spent_s,
        )


def submit(client: Client, web: WebEnd, path: Path, index: int) -> str:
    """By address, by path and with its audio inside, in turn."""
    priority: Priority = "interactive" if index % 2 else "batch"
    callback = f"{web.url}/webhook"
    if index % 3 == 0:
        return client.submit(web.serve(path), callback=callback, priority=priority)
    return client.submit(path, callback=callback, priority=priority, by_path=index % 3 == 1)


def is_same(found: Transcript, expected: Transcript) -> bool:
    """In words and times; scores depend, in their last digits, on what else was in the batch."""
    lines = [[(own.start, own.end, own.text, own.tokens) for own in each.segments] for each in (found, expected)]
    return found.text == expected.text and lines[0] == lines[1]


def patiently(ask: Callable[[], Sequence[JobRecord]]) -> Sequence[JobRecord]:
    """Redis may just be away."""
    while True:
        try:
            return ask()
        except RedisUnavailable:
            time.sleep(EVERY_S)


class WorkerCrew:
    """Worker processes, so many at any time."""

    def __init__(self, url: str, machine: Sequence[str], paths: Sequence[Path], plan: Plan, web: WebEnd) -> None:
        roots = ",".join(sorted({str(path.parent) for path in paths}))
        self._command = [sys.executable, "-m", "choral", "worker", "--quiet"]
        self._command += [*machine, *WORKER_FLAGS, "--roots", roots, "--allowed-hosts", web.host]
        self._environment = {**os.environ, "CHORAL_REDIS": url, "CHORAL_WEBHOOK_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
        self._processes = [self._started() for _ in range(plan.n_workers)]
        self._random = random.Random(plan.seed)
        self.n_kills = 0

    def kill_one(self) -> None:
        """Without warning; another takes its place."""
        index = self._random.randrange(len(self._processes))
        self._end(self._processes[index], signal.SIGKILL)
        self._processes[index] = self._started()
        self.n_kills += 1

    def require_alive(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise EngineError(f"a worker ended by itself, with code {process.returncode}: see above")

    def __enter__(self) -> WorkerCrew:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            self._end(process, signal.SIGKILL)

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env=self._environment)

    def _end(self, process: subprocess.Popen[bytes], how: signal.Signals) -> None:
        process.send_signal(how)
        process.wait()


class Upheaval:
    def __init__(
        self, plan: Plan, redis: RedisServer, crew: WorkerCrew, client: Client, tell: Callable[[str], None]
    ) -> None:
        self._plan, self._redis, self._crew, self._client, self._tell = plan, redis, crew, client, tell
        self._random = random.Random(plan.seed + 1)

    def last_until_done(self, job_ids: Sequence[str]) -> int:
        """Until every job has ended and every webhook was sent, or the limit; how often Redis was restarted."""
        deadline_s = time.monotonic() + self._plan.limit_s
        next_kill_s = self._next_kill_s()
        n_restarts = n_told = 0
        left = set(job_ids)
        while time.monotonic() < deadline_s:
            records = patiently(partial(self._client.show_all, [*left]))
            left -= {record.id for record in records if record.has_ended and record.webhook != "pending"}
            if not left:
                break
            n_ended = len(job_ids) - len(left)
            if n_ended >= n_told + max(1, len(job_ids) // 10):
                n_told = n_ended
                self._tell(f"{n_ended} of {len(job_ids)} jobs ended, and their webhooks were sent")
            if n_restarts == 0 and n_ended >= len(job_ids) // 2:
                self._tell("Redis is killed and started again")
                self._redis.stop(signal.SIGKILL)
                self._redis.start()
                n_restarts = 1
            if time.monotonic() > next_kill_s:
                self._crew.kill_one()
                self._tell("a worker is killed, another is started")
                next_kill_s = self._next_kill_s()
            self._crew.require_alive()
            time.sleep(EVERY_S)
        return n_restarts

    def _next_kill_s(self) -> float:
        return time.monotonic() + self._plan.kill_every_s * self._random.uniform(0.5, 1.5)
