"""How much memory a worker has after its first jobs, after many more, and after one long file.

Every job gets noise of its own, so that none is the same as another. Memory is that of the worker's process with its
children, each page that they share counted once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from choral.bench.load import Sound, joined, write_requests
from choral.bench.redis_server import RedisServer
from choral.bench.serve import tree
from choral.errors import EngineError
from choral.jobs.sync_client import Client

SETTLE_S = 3.0  # for the last job's leftovers to go
AHEAD = 100  # jobs that wait in the queue
BAR = 0.10


@dataclass(frozen=True)
class Plan:
    n_first: int = 200
    n_jobs: int = 2000
    long_s: float = 10_800.0


@dataclass(frozen=True)
class Level:
    after: str
    resident_bytes: int


@dataclass(frozen=True)
class MemoryReport:
    levels: tuple[Level, ...]

    @property
    def first_bytes(self) -> int:
        return self.levels[0].resident_bytes

    @property
    def ratio(self) -> float:
        """The last level by the first."""
        return self.levels[-1].resident_bytes / self.first_bytes

    @property
    def holds(self) -> bool:
        return abs(self.ratio - 1) <= BAR


def measure(
    plan: Plan, sounds: Sequence[Sound], machine: Sequence[str], folder: Path, tell: Callable[[str], None]
) -> MemoryReport:
    tree.require_proc()
    (folder / "redis").mkdir()
    with RedisServer(folder / "redis") as redis, Client(redis.url) as client:
        command = [sys.executable, "-m", "choral", "worker", *machine, "--quiet", "--roots", str(folder)]
        process = subprocess.Popen(command, env={**os.environ, "CHORAL_REDIS": redis.url})
        try:
            return MemoryReport(tuple(_levels(plan, sounds, client, process, folder, tell)))
        finally:
            process.kill()
            process.wait()


def _levels(
    plan: Plan,
    sounds: Sequence[Sound],
    client: Client,
    process: subprocess.Popen[bytes],
    folder: Path,
    tell: Callable[[str], None],
) -> list[Level]:
    levels: list[Level] = []

    def look(after: str) -> None:
        time.sleep(SETTLE_S)
        levels.append(Level(after, tree.memory_bytes(process.pid)))
        tell(f"after {after}: {levels[-1].resident_bytes / 1e6:,.0f} MB")

    def run_short(first: int, last: int) -> None:
        for start in range(first, last, AHEAD):
            numbers = range(start, min(start + AHEAD, last))
            _run_jobs([sounds[number % len(sounds)] for number in numbers], start, client, process, folder)
        look(f"{last} short jobs")

    run_short(0, plan.n_first)
    run_short(plan.n_first, plan.n_jobs)
    if plan.long_s > 0:
        _run_jobs([joined(sounds, plan.long_s)], plan.n_jobs, client, process, folder)
        look(f"{plan.long_s / 3600:g} hours in one file")
    return levels


def _run_jobs(
    sounds: Sequence[Sound], seed: int, client: Client, process: subprocess.Popen[bytes], folder: Path
) -> None:
    requests = write_requests(sounds, folder / "audio", seed)
    job_ids = [client.submit(request.path, by_path=True, language=request.language) for request in requests]
    records = client.wait_all(job_ids)
    failed = [record for record in records if record.state != "succeeded"]
    if failed:
        raise EngineError(f"{len(failed)} jobs failed, the first with: {failed[0].error}")
    if process.poll() is not None:
        raise EngineError(f"the worker ended with code {process.returncode}: see above")
