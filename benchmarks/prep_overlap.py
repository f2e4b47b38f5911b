"""How long does an engine wait for downloads: request by request, in micro-batches, and in a pipeline?

A local server delays each response; fetching and decoding, on threads, are real. The engine runs one request at a
time: a real model, or a stand-in that sleeps and, like a GPU, uses no CPU. The idle share is measured from the engine's
first request to its last. AUDIO is the file that every request sends (default: synthetic audio).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass

import choral
from choral.audio.recording import Recording
from choral.audio.source import open_source
from choral.bench.report import json_line, verdict
from choral.bench.synthetic_audio import AUDIO_FORMATS, synthetic_bytes
from choral.cli.arguments import Parser, describe
from choral.cli.console import write_stdout
from choral.errors import UsageError
from support.http_stub import HttpStub
from support.script import run_script

N_REQUESTS = 6
SYNTHETIC_S = 120
MAX_IDLE_SHARE = 0.05
WIDTH = 72

EngineCall = Callable[[Recording], object]


@dataclass(frozen=True)
class Interval:
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class Timeline:
    name: str
    wall_s: float
    idle_share: float  # after the first request began
    prep: tuple[Interval, ...]
    engine: tuple[Interval, ...]


@dataclass(frozen=True)
class OverlapResult:
    n_requests: int
    download_s: float
    engine: str
    timelines: tuple[Timeline, ...]

    @property
    def is_pipeline_busy(self) -> bool:
        return self.timelines[-1].idle_share < MAX_IDLE_SHARE


def stand_in(busy_s: float) -> EngineCall:
    return lambda recording: time.sleep(busy_s)


def measure(
    body: bytes, engine_call: EngineCall, engine: str, *, download_s: float, n_requests: int = N_REQUESTS
) -> OverlapResult:
    half = max(1, n_requests // 2)
    batch_sizes = {"serial": 1, f"micro-batches of {half}": half, f"micro-batch of {n_requests}": n_requests}
    with HttpStub(delay_s=download_s) as stub, ThreadPoolExecutor(n_requests) as pool:
        Recording.open(body).close()  # imports the decoder
        urls = [stub.serve_as(str(number), body) for number in range(n_requests)]
        timelines = [_OverlapRun(name, pool, engine_call).in_batches(urls, n) for name, n in batch_sizes.items()]
        timelines.append(_OverlapRun("pipelined", pool, engine_call).as_completed(urls))
    return OverlapResult(n_requests, download_s, engine, tuple(timelines))


def report(result: OverlapResult) -> str:
    longest_s = max(line.wall_s for line in result.timelines)
    head = f"{result.n_requests} requests, each downloaded in {result.download_s:g} s, engine: {result.engine}\n\n"
    rows = [f"{'':18} {'seconds':>8} {'engine idle after its first':>28}\n"]
    rows += [f"{line.name:18} {line.wall_s:>8.1f} {line.idle_share:>28.1%}\n" for line in result.timelines]
    charts = [_chart(line, longest_s) for line in result.timelines]
    bar = verdict("pipelined: engine idle under 5%", holds=result.is_pipeline_busy)
    return head + "".join(rows) + "\n" + "\n".join(charts) + "\n" + bar


def _chart(line: Timeline, longest_s: float) -> str:
    def row(intervals: Sequence[Interval], mark: str) -> str:
        cells = [" "] * WIDTH
        for interval in intervals:
            start = int(interval.start_s / longest_s * WIDTH)
            stop = max(start + 1, round(interval.stop_s / longest_s * WIDTH))
            cells[start:stop] = mark * len(cells[start:stop])
        return "".join(cells).rstrip()

    return f"{line.name:18} prep   {row(line.prep, '░')}\n{'':18} engine {row(line.engine, '█')}\n"


class _OverlapRun:
    def __init__(self, name: str, pool: ThreadPoolExecutor, engine_call: EngineCall) -> None:
        self._name, self._pool, self._engine_call = name, pool, engine_call
        self._prep: list[Interval] = []
        self._engine: list[Interval] = []
        self._start_s = time.perf_counter()

    def in_batches(self, urls: Sequence[str], size: int) -> Timeline:
        for first in range(0, len(urls), size):
            futures = [self._submit(url) for url in urls[first : first + size]]
            for recording in [future.result() for future in futures]:
                self._run(recording)
        return self._timeline()

    def as_completed(self, urls: Sequence[str]) -> Timeline:
        for future in as_completed([self._submit(url) for url in urls]):
            self._run(future.result())
        return self._timeline()

    def _submit(self, url: str) -> Future[Recording]:
        start_s = self._clock_s()
        future = self._pool.submit(Recording.open, url)
        future.add_done_callback(lambda _: self._prep.append(Interval(start_s, self._clock_s())))
        return future

    def _run(self, recording: Recording) -> None:
        start_s = self._clock_s()
        with recording:
            self._engine_call(recording)
        self._engine.append(Interval(start_s, self._clock_s()))

    def _clock_s(self) -> float:
        return time.perf_counter() - self._start_s

    def _timeline(self) -> Timeline:
        wall_s = self._clock_s()
        busy_s = sum(interval.stop_s - interval.start_s for interval in self._engine)
        idle_share = 1 - busy_s / (self._engine[-1].stop_s - self._engine[0].start_s)
        return Timeline(self._name, wall_s, idle_share, tuple(self._prep), tuple(self._engine))


def add_arguments(parser: Parser) -> None:
    parser.add_argument("audio", nargs="?", metavar="AUDIO", help=argparse.SUPPRESS)
    parser.add_argument(
        "--download", type=float, default=2.0, metavar="SECONDS", help=describe("delay of each download", 2)
    )
    parser.add_argument("--work", type=float, metavar="SECONDS", help="time per request of the stand-in (default: 2)")
    parser.add_argument("--model", metavar="NAME", help="a real model instead of the stand-in")


def run(arguments: argparse.Namespace) -> int:
    for name in ("download", "work"):
        seconds = getattr(arguments, name)
        if seconds is not None and not 0 < seconds <= 600:
            raise UsageError(f"{name} is {seconds!r}; it must be a number of seconds up to 600")
    if arguments.work is not None and arguments.model is not None:
        raise UsageError("--work is for the stand-in and --model for a real engine: give one of them")
    body = read_body(arguments.audio)
    if arguments.model is None:
        busy_s = 2.0 if arguments.work is None else arguments.work
        name = f"a stand-in, {busy_s:g} s each"
        result = measure(body, stand_in(busy_s), name, download_s=arguments.download)
    else:
        with closing(choral.load(arguments.model)) as model:
            result = measure(body, model.transcribe, model.name, download_s=arguments.download)
    write_stdout(f"{report(result)}\n{json_line('prep overlap', asdict(result))}\n")
    return 0


def read_body(audio: str | None) -> bytes:
    if audio is None:
        return synthetic_bytes(AUDIO_FORMATS[0], SYNTHETIC_S)
    with open_source(audio) as source:
        return source.file.read()


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run, usage="[AUDIO] [options]", has_machine_flags=False)
