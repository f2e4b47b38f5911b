"""CPU time of a request outside its process: its start, the pool's thread, and serving an engine that does nothing.

Prints one line of JSON with milliseconds of CPU a request, so that other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import wave
from pathlib import Path

import choral
from choral.bench.null_runner import make_null_engine
from choral.cli.arguments import Parser, describe
from choral.cli.bench import require_counts
from choral.config import EngineSettings
from choral.longform.transcriber import Transcriber
from choral.model.store import ModelStore
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint
from choral.serving.engine_server import EngineServer
from choral.serving.pool_settings import PoolSettings
from choral.serving.request_events import RequestEvent, RequestFailed, RequestFinished, TranscribeRequest
from choral.serving.request_pool import RequestPool
from support.script import run_script

N_AT_ONCE = 32
CLIP_S = 5


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--requests", type=int, default=1000, metavar="N", help=describe("requests", 1000))
    parser.add_argument("--processes", type=int, default=2, metavar="N", help=describe("request processes", 2))


def measure(arguments: argparse.Namespace) -> int:
    require_counts(arguments, requests=1, processes=1)
    n_requests, n_processes = arguments.requests, arguments.processes
    checkpoint = open_checkpoint(ModelStore().resolve("tiny.en"))
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    engine = make_null_engine(checkpoint, tokenizer, EngineSettings(warm_up=False))
    server = EngineServer(Transcriber(engine, tokenizer, checkpoint.dims))
    settings = PoolSettings(n_processes=n_processes, n_requests=-(-N_AT_ONCE // n_processes))
    with tempfile.TemporaryDirectory() as folder, RequestPool(server.add_client, settings) as pool:
        clip = write_clip(Path(folder) / "clip.wav")
        run(pool, clip, 2 * N_AT_ONCE)  # starts the processes
        before, started_s = threads_cpu_s(), time.perf_counter()
        start_s = run(pool, clip, n_requests)
        took_s, after = time.perf_counter() - started_s, threads_cpu_s()
        spent_ms = {name: 1000 * (after[name] - before.get(name, 0.0)) / n_requests for name in sorted(after)}
    server.close()
    engine.close()
    found = {name: round(ms, 4) for name, ms in spent_ms.items() if ms > 0.001}
    print(json.dumps({"start_ms": round(1000 * start_s / n_requests, 4), **found, "wall_s": round(took_s, 2)}))
    return 0


def run(pool: RequestPool, clip: Path, n_requests: int) -> float:
    """Seconds of CPU that starting them took."""
    room, start_s = threading.Semaphore(N_AT_ONCE), 0.0
    options = choral.TranscribeOptions(language="en")

    def on_event(event: RequestEvent) -> None:
        if isinstance(event, RequestFinished | RequestFailed):
            assert isinstance(event, RequestFinished), event
            room.release()

    for _ in range(n_requests):
        room.acquire()
        before_s = time.thread_time()
        pool.start(TranscribeRequest(audio=clip, options=options), on_event)
        start_s += time.thread_time() - before_s
    for _ in range(N_AT_ONCE):
        room.acquire()
    return start_s


def threads_cpu_s() -> dict[str, float]:
    """CPU seconds of each thread of this process, by its name."""
    found = {}
    for thread in threading.enumerate():
        run_ns = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
        found[thread.name] = int(run_ns) / 1e9
    return found


def write_clip(path: Path) -> Path:
    with wave.open(str(path), "wb") as clip:
        clip.setparams((1, 2, 16_000, 0, "NONE", ""))
        clip.writeframes(bytes(range(1, 161)) * (100 * CLIP_S * 2))
    return path


if __name__ == "__main__":
    run_script(__doc__, add_arguments, measure, usage="[options]", has_machine_flags=False)
