"""What waiting for downloads costs an engine: one request after another, in micro-batches, and as a pipeline.

Files come from a server on this machine that waits before it answers; fetching, decoding and the pool are real. The
engine takes one request at a time: a real model, or a stand-in that is busy for a set time and uses no core, as a GPU
would. Idle is the share of the time from the engine's first request to its last in which it had nothing to do.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from choral.audio.prep.pool import Prepared, PrepPool
from choral.audio.prep.settings import PrepSettings
from choral.audio.recording import Recording
from choral.bench.report import verdict

N_REQUESTS = 6
MAX_IDLE_SHARE = 0.05
WIDTH = 72

Work = Callable[[Recording], object]


@dataclass(frozen=True)
class Span:
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class Timeline:
    name: str
    wall_s: float
    idle_share: float  # after the first request began
    prep: tuple[Span, ...]
    engine: tuple[Span, ...]


@dataclass(frozen=True)
class Overlap:
    n_requests: int
    download_s: float
    engine: str
    timelines: tuple[Timeline, ...]

    @property
    def is_pipeline_busy(self) -> bool:
        return self.timelines[-1].idle_share < MAX_IDLE_SHARE


def stand_in(busy_s: float) -> Work:
    return lambda recording: time.sleep(busy_s)


def measure_overlap(
    body: bytes, work: Work, engine: str, *, download_s: float, n_requests: int = N_REQUESTS
) -> Overlap:
    half = max(1, n_requests // 2)
    plans = {"serial": 1, f"micro-batches of {half}": half, f"micro-batch of {n_requests}": n_requests}
    with slow_server(body, download_s) as url, PrepPool(PrepSettings(allowed_hosts=("127.0.0.1",))) as pool:
        pool.submit(body).result().recording.close()  # its processes start before the clock does
        urls = [f"{url}/{number}" for number in range(n_requests)]
        timelines = [_Run(name, pool, work).in_batches(urls, size) for name, size in plans.items()]
        timelines.append(_Run("pipelined", pool, work).as_they_come(urls))
    return Overlap(n_requests, download_s, engine, tuple(timelines))


def report(overlap: Overlap) -> str:
    longest_s = max(line.wall_s for line in overlap.timelines)
    head = f"{overlap.n_requests} requests, each downloaded in {overlap.download_s:g} s, engine: {overlap.engine}\n\n"
    rows = [f"{'':18} {'seconds':>8} {'engine idle after its first':>28}\n"]
    rows += [f"{line.name:18} {line.wall_s:>8.1f} {line.idle_share:>28.1%}\n" for line in overlap.timelines]
    drawn = [_drawn(line, longest_s) for line in overlap.timelines]
    ending = verdict("pipelined: engine idle under 5%", holds=overlap.is_pipeline_busy)
    return head + "".join(rows) + "\n" + "\n".join(drawn) + "\n" + ending


def _drawn(line: Timeline, longest_s: float) -> str:
    def row(spans: Sequence[Span], mark: str) -> str:
        cells = [" "] * WIDTH
        for span in spans:
            start = int(span.start_s / longest_s * WIDTH)
            stop = max(start + 1, round(span.stop_s / longest_s * WIDTH))
            cells[start:stop] = mark * len(cells[start:stop])
        return "".join(cells).rstrip()

    return f"{line.name:18} prep   {row(line.prep, '░')}\n{'':18} engine {row(line.engine, '█')}\n"


class _Run:
    def __init__(self, name: str, pool: PrepPool, work: Work) -> None:
        self._name, self._pool, self._work = name, pool, work
        self._prep: list[Span] = []
        self._engine: list[Span] = []
        self._start_s = time.perf_counter()

    def in_batches(self, urls: Sequence[str], size: int) -> Timeline:
        for first in range(0, len(urls), size):
            futures = [self._submit(url) for url in urls[first : first + size]]
            for prepared in [future.result() for future in futures]:
                self._run(prepared)
        return self._timeline()

    def as_they_come(self, urls: Sequence[str]) -> Timeline:
        for future in as_completed([self._submit(url) for url in urls]):
            self._run(future.result())
        return self._timeline()

    def _submit(self, url: str) -> Future[Prepared]:
        start_s = self._clock_s()
        future = self._pool.submit(url)
        future.add_done_callback(lambda _: self._prep.append(Span(start_s, self._clock_s())))
        return future

    def _run(self, prepared: Prepared) -> None:
        start_s = self._clock_s()
        with prepared.recording as recording:
            self._work(recording)
        self._engine.append(Span(start_s, self._clock_s()))

    def _clock_s(self) -> float:
        return time.perf_counter() - self._start_s

    def _timeline(self) -> Timeline:
        wall_s = self._clock_s()
        busy_s = sum(span.stop_s - span.start_s for span in self._engine)
        idle_share = 1 - busy_s / (self._engine[-1].stop_s - self._engine[0].start_s)
        return Timeline(self._name, wall_s, idle_share, tuple(self._prep), tuple(self._engine))


@contextlib.contextmanager
def slow_server(body: bytes, delay_s: float) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(delay_s)  # the wait is what is simulated
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
