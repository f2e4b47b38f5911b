"""How do many GPUs behave? The real engine loop, scheduler and router on a virtual clock.

Steps take the time that `choral bench gpu` measured (on one H200, or in FILE of --costs). Loads:

  check   the loads of `choral bench gpu` on one GPU, beside what it measured
  batch   a corpus: every GPU has more windows than slots; files of --windows windows
  live    --rate windows a second arrive at random, by --arrivals: what live streams and short requests send

With --encode-gpus, some GPUs only encode, and hand what they made to those that decode.
--failures-per-hour of each GPU; a GPU that failed is back after --down-s, and its windows go elsewhere.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from choral.bench.report import json_line
from choral.cli.arguments import Parser, describe
from choral.cli.console import format_table, write_stdout
from choral.engine.window import Caller
from choral.errors import UsageError
from support.arrivals import ARRIVALS, arrival_times
from support.load_run import HAND_OVER_MS, LoadRun, SimulatedLoad
from support.script import run_script
from support.step_costs import H200, StepTimes, read_step_times

WINDOW_S = 30.0
LONG_TOKENS, SHORT_TOKENS, SHORT_S = 100, 27, 10.0
CHECK_CALLERS = {10: 10, 50: 73}


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


def cluster_for(arguments: argparse.Namespace, times: StepTimes) -> LoadRun:
    n_routers = arguments.routers or arguments.gpus
    return LoadRun(times, arguments.gpus, n_routers, arguments.seed, arguments.encode_gpus, arguments.hand_over_ms)


def run_batch(arguments: argparse.Namespace, times: StepTimes) -> SimulatedLoad:
    """Files, as many at once as keep every slot busy; a file that ends is replaced until the time is over."""
    run = cluster_for(arguments, times)
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
    run = cluster_for(arguments, times)
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
        "--encode-gpus", type=int, default=0, metavar="N", help=describe("of them that only encode, for the others", 0)
    )
    parser.add_argument(
        "--hand-over-ms",
        type=float,
        default=HAND_OVER_MS,
        metavar="MS",
        help=describe("of a decoding GPU, to take over a window", HAND_OVER_MS),
    )
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
    if not 0 <= arguments.encode_gpus < arguments.gpus:
        raise UsageError("--encode-gpus must be less than --gpus")
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
