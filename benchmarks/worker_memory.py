"""Does a worker's memory grow? Memory of one worker after its first short jobs, after many more, and after a long file.

Every job gets its own inaudible noise, so no cache helps. Memory is that of the worker and its child processes, shared
pages counted once. FOLDER has clips of speech of at most 30 s; without one, five sentences are downloaded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from choral.bench import process_tree
from choral.bench.clips import AudioClip, join_clips, write_audio_files
from choral.bench.report import json_line, verdict
from choral.cli.arguments import Parser, describe
from choral.cli.bench import add_folder, find_short_clips, progress, require_counts
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import machine_arguments
from choral.errors import EngineError, UsageError
from choral.jobs.sync_client import Client
from support.redis_server import RedisServer
from support.script import run_script

SETTLE_S = 3.0  # for the last job to be cleaned up
MAX_QUEUED = 100  # jobs
MAX_GROWTH = 0.10


@dataclass(frozen=True)
class WorkerMemorySettings:
    n_first: int = 200
    n_jobs: int = 2000
    long_s: float = 10_800.0


@dataclass(frozen=True)
class MemoryReading:
    after: str
    resident_bytes: int


@dataclass
class WorkerMemoryRun:
    """One worker and the readings of its memory."""

    client: Client
    process: subprocess.Popen[bytes]
    folder: Path
    log: Callable[[str], None]
    readings: list[MemoryReading] = field(default_factory=list)

    def measure(self, settings: WorkerMemorySettings, clips: Sequence[AudioClip]) -> None:
        for first, last in ((0, settings.n_first), (settings.n_first, settings.n_jobs)):
            for start in range(first, last, MAX_QUEUED):
                numbers = range(start, min(start + MAX_QUEUED, last))
                self._run_jobs([clips[number % len(clips)] for number in numbers], seed=start)
            self._read_memory(f"{last} short jobs")
        if settings.long_s > 0:
            self._run_jobs([join_clips(clips, settings.long_s)], seed=settings.n_jobs)
            self._read_memory(f"{settings.long_s / 3600:g} hours in one file")

    def _read_memory(self, after: str) -> None:
        time.sleep(SETTLE_S)
        self.readings.append(MemoryReading(after, process_tree.memory_bytes(self.process.pid)))
        self.log(f"after {after}: {self.readings[-1].resident_bytes / 1e6:,.0f} MB")

    def _run_jobs(self, clips: Sequence[AudioClip], seed: int) -> None:
        files = write_audio_files(clips, self.folder / "audio", seed)
        job_ids = [self.client.submit(file.path, by_path=True, language=file.language) for file in files]
        failed = [record for record in self.client.wait_all(job_ids) if record.state != "succeeded"]
        if failed:
            raise EngineError(f"{len(failed)} jobs failed, the first with: {failed[0].error}")
        if self.process.poll() is not None:
            raise EngineError(f"the worker exited with code {self.process.returncode}: see above")


def measure(
    settings: WorkerMemorySettings,
    clips: Sequence[AudioClip],
    flags: Sequence[str],
    folder: Path,
    log: Callable[[str], None],
) -> list[MemoryReading]:
    process_tree.require_linux()
    (folder / "redis").mkdir()
    with RedisServer(folder / "redis") as redis, Client(redis.url) as client:
        command = [sys.executable, "-m", "choral", "worker", *flags, "--quiet", "--roots", str(folder)]
        process = subprocess.Popen(command, env={**os.environ, "CHORAL_REDIS": redis.url})
        try:
            memory_run = WorkerMemoryRun(client, process, folder, log)
            memory_run.measure(settings, clips)
            return memory_run.readings
        finally:
            process.kill()
            process.wait()


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument(
        "--first", type=int, default=200, metavar="N", help=describe("jobs before the first reading", 200)
    )
    parser.add_argument("--jobs", type=int, default=2000, metavar="N", help=describe("short jobs in all", 2000))
    parser.add_argument(
        "--long-s", type=float, default=10_800.0, metavar="SECONDS", help=describe("length of the long file", 10800)
    )


def run(arguments: argparse.Namespace) -> int:
    require_counts(arguments, first=1, jobs=1)
    if arguments.first > arguments.jobs:
        raise UsageError("first must not be more than jobs")
    clips = find_short_clips(arguments.folder, arguments.quiet)
    settings = WorkerMemorySettings(arguments.first, arguments.jobs, arguments.long_s)
    with tempfile.TemporaryDirectory(prefix="choral-memory-") as folder:
        readings = measure(settings, clips, machine_arguments(arguments), Path(folder), progress(arguments))
    first_bytes = readings[0].resident_bytes
    ratio = readings[-1].resident_bytes / first_bytes
    rows = [("after", "MB", "of the first")]
    rows += [
        (reading.after, f"{reading.resident_bytes / 1e6:,.0f}", f"{reading.resident_bytes / first_bytes:.3f}")
        for reading in readings
    ]
    bar = verdict(f"within {MAX_GROWTH:.0%} of the first", holds=abs(ratio - 1) <= MAX_GROWTH)
    write_stdout(f"{format_table(rows, numbers=(1, 2))}\n{bar}")
    write_stdout(json_line("worker-memory", {"levels": readings, "ratio": ratio}) + "\n")
    return 0


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run)
