"""CPU time of a window at the engine's boundary: `submit` in the client, and the server's thread, of an idle engine.

Prints one line of JSON with microseconds of CPU a window, for short windows and those of 30 s, and those of `submit` in
the engine's own process for comparison.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time

import numpy as np

from choral.audio.constants import SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.bench.null_runner import NullRunner
from choral.cli.arguments import Parser, describe
from choral.cli.bench import require_counts
from choral.config import EngineSettings
from choral.engine.any_engine import AnyEngine
from choral.engine.engine import Engine
from choral.engine.window import Caller, Decoded, DecodeParams, Window, WindowAudio
from choral.longform.transcriber import Transcriber
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.serving.engine_client import connect
from choral.serving.engine_server import EngineServer
from support.script import run_script

DIMS = ModelDims(80, 1500, 384, 6, 4, 51_865, 448, 384, 6, 4)  # those of tiny
N_AT_ONCE, N_TOKENS, N_PROMPT_TOKENS = 64, 60, 200
LENGTHS = {"short": SAMPLE_RATE // 10, "30 s": WINDOW_SAMPLES}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--windows", type=int, default=1000, metavar="N", help=describe("windows", 1000))
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)  # the client's process: samples of its windows


def measure(arguments: argparse.Namespace) -> int:
    require_counts(arguments, windows=1)
    if arguments.client is None:
        measure_boundary(arguments.windows)
    else:
        with socket.socket(fileno=sys.stdin.fileno()) as connection:
            print(run(connect(connection).engine, arguments.client, arguments.windows))
    return 0


def measure_boundary(n_windows: int) -> None:
    found: dict[str, dict[str, float]] = {}
    for name, n_samples in LENGTHS.items():
        engine = null_engine()
        server = EngineServer(Transcriber(engine, Tokenizer.for_checkpoint(DIMS), DIMS))
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, f"--windows={n_windows}", f"--client={n_samples}"]
            client = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.PIPE, text=True)
        server.add_client(ours)
        submit_us = float(client.communicate()[0])
        clock = time.pthread_getcpuclockid(server._thread.ident or 0)
        server_us = 1e6 * time.clock_gettime(clock) / n_windows
        found[name] = {"submit": submit_us, "server": server_us, "in_process_submit": run(engine, n_samples, n_windows)}
        server.close()
        engine.close()
    print(json.dumps({name: {part: round(us, 1) for part, us in parts.items()} for name, parts in found.items()}))


def null_engine() -> Engine:
    result = Decoded(tuple(range(N_TOKENS)), avg_logprob=-0.2, no_speech_prob=0.01)
    return Engine(NullRunner(N_AT_ONCE, 4, result), EngineSettings())


def run(engine: AnyEngine, n_samples: int, n_windows: int) -> float:
    """Microseconds of CPU that submitting a window takes; each has its own prompt, as in sequential mode."""
    room, caller, spent_s = threading.Semaphore(N_AT_ONCE), Caller(), 0.0
    rng = np.random.default_rng(0)
    suppressed = Tokenizer.for_checkpoint(DIMS).suppressed((-1,))
    samples = rng.normal(0, 0.1, n_samples).astype(np.float32)
    for _ in range(n_windows):
        prompt = tuple(rng.integers(0, 50_000, N_PROMPT_TOKENS).tolist())
        params = DecodeParams(language="en", prompt=prompt, suppress_tokens=suppressed)
        window = Window(WindowAudio(samples, 0, WINDOW_MEL_FRAMES, None), params)
        room.acquire()
        before_s = time.thread_time()
        pending = engine.submit(window, caller)
        spent_s += time.thread_time() - before_s
        pending.add_done_callback(lambda _: room.release())
    for _ in range(N_AT_ONCE):
        room.acquire()
    return 1e6 * spent_s / n_windows


if __name__ == "__main__":
    run_script(__doc__, add_arguments, measure, usage="[options]", has_machine_flags=False)
