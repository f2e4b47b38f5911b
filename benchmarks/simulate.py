"""How do many GPUs behave? The real engine loop, scheduler and router on a virtual clock.

Steps take the time that `choral bench gpu` measured (on one H200, or in FILE of --costs). Loads:

  check   the loads of `choral bench gpu` on one GPU, beside what it measured
  batch   a corpus: every GPU has more windows than slots; files of --windows windows
  live    --rate windows a second arrive at random, by --arrivals: what live streams and short requests send

--failures-per-hour of each GPU; a GPU that failed is back after --down-s, and its windows go elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from choral.bench.report import json_line
from choral.cli.arguments import Parser, describe
from choral.cli.console import format_table, write_stdout
from choral.engine.window import Caller
from choral.errors import UsageError
from support.script import run_script
from support.step_costs import H200, StepTimes, read_step_times
from support.virtual_cluster import VirtualClock, VirtualCluster, VirtualGpu, VirtualWindow

WINDOW_S, SAMPLE_BYTES = 30.0, 16_000 * 4  # samples are sent to engines as float32
LONG_TOKENS, SHORT_TOKENS, SHORT_S = 100, 27, 10.0
CHECK_CALLERS = {10: 10, 50: 73}
ARRIVALS = ("poisson", "bursts", "day")
BURST_FACTOR, BURST_PERIOD_S, BURST_S = 4.0, 10.0, 2.0
DAY_LOW = 0.2  # of the mean rate, at night; as much above the mean at noon


@dataclass(frozen=True)
class SimulatedLoad:
    load: str
    model: str
    n_gpus: int
    virtual_s: float
    windows: int
    windows_per_s: float
    times_real_time: float
    p50_s: float
    p99_s: float
    busy_share: float
    sample_bytes_per_s: float  # from where audio is decoded to the engines
    resent: int
    failures: int


class LoadRun:
    """One cluster with one load: who sends windows when, and when they end."""

    def __init__(self, times: StepTimes, n_gpus: int, n_routers: int, seed: int) -> None:
        self.clock, self.dice = VirtualClock(), random.Random(seed)
        random.seed(seed)  # the router's choice between equals
        self.cluster = VirtualCluster(self.clock, times, n_gpus, n_routers)
        self.times, self.n_failures = times, 0
        self.ends: list[tuple[float, float]] = []  # of windows: when they ended, and how long they took
        self._numbers = itertools.count()

    def send(self, n_tokens: int, caller: Caller, on_end: Callable[[], None] = lambda: None) -> None:
        started_s = self.clock.now_s
        router = self.cluster.routers[id(caller) // 64 % len(self.cluster.routers)]

        def end() -> None:
            self.ends.append((self.clock.now_s, self.clock.now_s - started_s))
            on_end()

        key = next(self._numbers).to_bytes(8, "little")
        self.cluster.submit(VirtualWindow(key, n_tokens, caller, end), router)

    def fail_at_random(self, per_hour: float, down_s: float, until_s: float) -> None:
        for gpu in self.cluster.gpus:
            at_s = 0.0
            while per_hour and (at_s := at_s + self.dice.expovariate(per_hour / 3600)) < until_s:
                self.clock.call_at(at_s, partial(self._fail, gpu, down_s))

    def _fail(self, gpu: VirtualGpu, down_s: float) -> None:
        self.n_failures += 1
        gpu.fail(down_s)

    def result(self, load: str, window_s: float, warm_up_s: float = 0.0) -> SimulatedLoad:
        """Of the time after the warm-up, in which nothing ends at first and then much at once."""
        seconds = self.clock.now_s
        latencies_s = [latency_s for ended_s, latency_s in self.ends if ended_s >= warm_up_s]
        n = len(latencies_s)
        p50_s, p99_s = np.percentile(latencies_s, [50, 99]) if n else (math.nan, math.nan)
        busy_s = sum(gpu.busy_s for gpu in self.cluster.gpus)
        rate = n / (seconds - warm_up_s)
        return SimulatedLoad(
            load=load,
            model=self.times.name,
            n_gpus=len(self.cluster.gpus),
            virtual_s=seconds,
            windows=n,
            windows_per_s=rate,
            times_real_time=rate * window_s,
            p50_s=float(p50_s),
            p99_s=float(p99_s),
            busy_share=busy_s / seconds / len(self.cluster.gpus),
            sample_bytes_per_s=rate * window_s * SAMPLE_BYTES,
            resent=self.cluster.n_resent,
            failures=self.n_failures,
        )


def run_windows(times: StepTimes, n_windows: int, n_tokens: int) -> SimulatedLoad:
    """All at once, each with its own caller."""
    run = LoadRun(times, 1, 1, seed=0)
    for _ in range(n_windows):
        run.send(n_tokens, Caller())
    run.clock.run()
    return run.result(f"{n_windows} windows", WINDOW_S)


def run_callers(times: StepTimes, n_callers: int, n_requests: int) -> SimulatedLoad:
    """Each caller waits for its response before the next request."""
    run = LoadRun(times, 1, 1, seed=0)
    left = iter(range(n_requests))

    def send_next() -> None:
        if next(left, None) is not None:
            run.send(SHORT_TOKENS, Caller(), send_next)

    for _ in range(n_callers):
        send_next()
    run.clock.run()
    return run.result(f"{n_callers} callers", SHORT_S)


def run_batch(arguments: argparse.Namespace, times: StepTimes) -> SimulatedLoad:
    """Files, as many at once as keep every slot busy; a file that ends is replaced until the time is over."""
    run = LoadRun(times, arguments.gpus, arguments.routers or arguments.gpus, arguments.seed)
    run.fail_at_random(arguments.failures_per_hour, arguments.down_s, arguments.seconds)

    def start_file() -> None:
        caller, left = Caller("batch"), [arguments.windows]

        def end_window() -> None:
            left[0] -= 1
            if not left[0] and run.clock.now_s < arguments.seconds:
                start_file()

        for _ in range(arguments.windows):
            run.send(tokens(run, arguments.tokens), caller, end_window)

    for _ in range(math.ceil(1.25 * times.n_slots * arguments.gpus / arguments.windows)):
        start_file()
    run.clock.run(arguments.seconds)
    return run.result("batch", WINDOW_S, arguments.warm_up_s)


def run_live(arguments: argparse.Namespace, times: StepTimes) -> SimulatedLoad:
    run = LoadRun(times, arguments.gpus, arguments.routers or arguments.gpus, arguments.seed)
    run.fail_at_random(arguments.failures_per_hour, arguments.down_s, arguments.seconds)

    def arrive(times_s: Iterator[float]) -> None:
        """One event at a time: a list of all would be large."""
        run.send(tokens(run, arguments.tokens), Caller())
        if (following_s := next(times_s, None)) is not None:
            run.clock.call_at(following_s, lambda: arrive(times_s))

    arrivals = arrival_times(arguments.arrivals, arguments.rate, arguments.seconds, run.dice)
    if (first_s := next(arrivals, None)) is not None:
        run.clock.call_at(first_s, lambda: arrive(arrivals))
    run.clock.run(arguments.seconds)
    return run.result(f"live, {arguments.arrivals}", arguments.window_s, arguments.warm_up_s)


def arrival_times(kind: str, rate: float, until_s: float, dice: random.Random) -> Iterator[float]:
    """A Poisson process whose rate changes with time, by thinning; its mean is `rate`."""
    quiet = (BURST_PERIOD_S - BURST_FACTOR * BURST_S) / (BURST_PERIOD_S - BURST_S)
    factors: dict[str, tuple[float, Callable[[float], float]]] = {
        "poisson": (1.0, lambda at_s: 1.0),
        "bursts": (BURST_FACTOR, lambda at_s: BURST_FACTOR if at_s % BURST_PERIOD_S < BURST_S else quiet),
        "day": (2 - DAY_LOW, lambda at_s: 1 - (1 - DAY_LOW) * math.cos(2 * math.pi * at_s / until_s)),
    }
    highest, factor = factors[kind]
    at_s = 0.0
    while (at_s := at_s + dice.expovariate(rate * highest)) < until_s:
        if dice.random() * highest < factor(at_s):
            yield at_s


def tokens(run: LoadRun, mean: int) -> int:
    """Lengths of speech are spread: a third of them differ by more than half of the mean."""
    return max(1, round(run.dice.gauss(mean, mean / 2)))


def check(times: StepTimes) -> list[list[str]]:
    """The same loads as the measurement, and how far the simulation is off."""
    simulated = {"windows": run_windows(times, 512, LONG_TOKENS).windows_per_s}
    simulated |= {str(n): run_callers(times, n, requests).windows_per_s for n, requests in CHECK_CALLERS.items()}
    return [
        [times.name, name, f"{times.measured[name]:.0f}/s", f"{rate:.0f}/s", f"{rate / times.measured[name] - 1:+.0%}"]
        for name, rate in simulated.items()
    ]


def add_arguments(parser: Parser) -> None:
    parser.add_argument("load", choices=("check", "batch", "live"), metavar="check|batch|live")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help=describe("number of GPUs", 1))
    parser.add_argument(
        "--model",
        default="large-v3 fp8",
        metavar="NAME",
        help=describe(f"of {', '.join(H200)}", "large-v3 fp8"),
    )
    parser.add_argument("--costs", metavar="FILE", help="output of `choral bench gpu` (default: that of one H200)")
    parser.add_argument(
        "--routers",
        type=int,
        default=0,
        metavar="N",
        help=describe("processes that send windows, each of which sees only its own", "one per GPU"),
    )
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help=describe("of virtual time", 20))
    parser.add_argument(
        "--warm-up-s", type=float, default=5.0, metavar="S", help=describe("of the virtual time, not counted", 5)
    )
    parser.add_argument("--rate", type=float, default=100.0, metavar="N", help=describe("live: windows a second", 100))
    parser.add_argument(
        "--window-s", type=float, default=SHORT_S, metavar="S", help=describe("live: audio in a window", SHORT_S)
    )
    parser.add_argument(
        "--arrivals",
        choices=ARRIVALS,
        default="poisson",
        metavar="|".join(ARRIVALS),
        help=describe("live: when windows arrive", "poisson"),
    )
    parser.add_argument(
        "--tokens", type=int, default=LONG_TOKENS, metavar="N", help=describe("mean tokens of a window", LONG_TOKENS)
    )
    parser.add_argument("--windows", type=int, default=20, metavar="N", help=describe("batch: windows of a file", 20))
    parser.add_argument("--failures-per-hour", type=float, default=0.0, metavar="N", help=describe("of each GPU", 0))
    parser.add_argument(
        "--down-s", type=float, default=60.0, metavar="S", help=describe("until a failed GPU is back", 60)
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help=describe("of all that is random", 1))


def run(arguments: argparse.Namespace) -> int:
    known = read_step_times(Path(arguments.costs)) if arguments.costs else H200
    if arguments.load == "check":
        rows = [["", "load", "measured", "simulated", "off by"]]
        rows += [row for times in known.values() for row in check(times)]
        write_stdout(format_table(rows, numbers=(2, 3, 4)) + "\n")
        write_stdout(json_line("simulate", {"check": rows[1:]}) + "\n")
        return 0
    if not 0 <= arguments.warm_up_s < arguments.seconds:
        raise UsageError("--warm-up-s must be less than --seconds")
    if arguments.gpus < 1 or arguments.rate <= 0 or arguments.tokens < 1 or arguments.windows < 1:
        raise UsageError("--gpus, --rate, --tokens and --windows must be positive")
    if arguments.model not in known:
        raise UsageError(f"--model is {arguments.model!r}; it must be one of {', '.join(known)}")
    started_s = time.perf_counter()
    result = (run_batch if arguments.load == "batch" else run_live)(arguments, known[arguments.model])
    rows = [["load", "GPUs", "windows/s", "× real time", "p50", "p99", "busy", "samples", "failures", "sent again"]]
    rows.append(
        [
            result.load,
            f"{result.n_gpus:,}",
            f"{result.windows_per_s:,.0f}",
            f"{result.times_real_time:,.0f}",
            f"{result.p50_s:.3f} s",
            f"{result.p99_s:.3f} s",
            f"{result.busy_share:.0%}",
            f"{result.sample_bytes_per_s / 1e9:.2f} GB/s",
            str(result.failures),
            str(result.resent),
        ]
    )
    write_stdout(format_table(rows, numbers=range(1, len(rows[0]))) + "\n")
    fields = {
        **asdict(result),
        "took_s": time.perf_counter() - started_s,
        "options": simple_values(arguments),
    }
    write_stdout(json_line("simulate", fields) + "\n")
    return 0


def simple_values(arguments: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(arguments).items() if isinstance(value, str | int | float)}


if __name__ == "__main__":
    run_script(__doc__ or "", add_arguments, run, usage="check|batch|live [options]", has_machine_flags=False)
