"""`choral bench engine`: throughput, memory and overhead of the engine under load."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser
from choral.cli.bench import progress, read_counts, read_workload, require_counts
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import add_machine_flags, engine_settings, load_model
from choral.errors import UsageError
from choral.storage import storage_errors

if TYPE_CHECKING:
    from choral.bench.engine_load import EngineOverhead, LoadResult
    from choral.bench.trace import EngineTrace
    from choral.bench.workload import Workload
    from choral.engine.group import LocalEngine

USAGE = "choral bench engine [AUDIO …] [options]"
DESCRIPTION = """\
Measures the engine under load: --windows different windows are queued at once.

The windows are cut from AUDIO: files or folders (default: a sample of speech). Decoding is
greedy, in English, with timestamps, without retries. --trace and --picture show the last load.
"""
COUNTS, ALL_COUNTS, MAX_WINDOWS = "1,4,16,64,128", "1,4,16,64,256,1024,4096", 4096
SHAPES = ("nano", "tiny", "base", "small")


@dataclass(frozen=True)
class EngineSubject:
    """What was measured, and with what; the field names are those of the JSON line."""

    model: str
    engine: str
    device: str
    compute_type: str
    workload: str
    slots: int
    cache_budget_bytes: int

    @classmethod
    def of(cls, arguments: argparse.Namespace, engine: LocalEngine, workload: Workload) -> EngineSubject:
        random_weights = getattr(arguments, "random_weights", None)
        model = f"random {random_weights}" if random_weights else arguments.model or "the default model"
        capacity = engine.capacity
        machine = (engine.name, engine.device, engine.compute_type)
        return cls(model, *machine, workload.name, capacity.n_slots, capacity.cache_bytes)

    @property
    def title(self) -> str:
        return f"{self.model}, {self.engine} on {self.device} in {self.compute_type}, {self.slots} slots"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("audio", nargs="*", metavar="AUDIO", help=argparse.SUPPRESS)
    parser.add_argument(
        "--windows",
        metavar="N,N,…",
        help=f"how many to queue, one load after another, {MAX_WINDOWS} at most "
        f"(default: {COUNTS}; with the random weights nano: {ALL_COUNTS})",
    )
    parser.add_argument(
        "--callers",
        type=int,
        metavar="N",
        help="this many callers, the first with half of the windows (default: one for each window)",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="maximum number of tokens per window (default: 64; with random weights: 16)",
    )
    parser.add_argument(
        "--random-weights",
        choices=SHAPES,
        metavar="SHAPE",
        help=f"random weights instead of a model, in the shape of {', '.join(SHAPES)} (nano: 1 layer, 64 wide)",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace of every step for Perfetto (.json)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the batch over time (.svg)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the results (.png; needs matplotlib)")
    parser.add_argument("--quiet", action="store_true", help="print the table only, no progress")
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from choral.bench import engine_load
    from choral.bench.trace import Recorder

    counts, log = read_windows(arguments), progress(arguments)
    if arguments.plot is not None:
        engine_load.require_matplotlib()
    workload = read_workload(arguments.audio)
    with closing(open_engine(arguments)) as engine:
        recorder = Recorder(engine.capacity.n_slots) if arguments.trace or arguments.picture else None
        loads = engine_load.measure(
            engine,
            workload,
            counts,
            n_callers=arguments.callers,
            max_tokens=arguments.max_tokens or (16 if arguments.random_weights else 64),
            on_step=recorder,
            on_load=lambda load: log(f"{load.windows} windows: {load.windows_per_s:.2f} per second"),
        )
        subject = EngineSubject.of(arguments, engine, workload)
    overheads = [engine_load.measure_overhead(*load) for load in engine_load.OVERHEAD_LOADS]
    if recorder is not None:
        write_trace(arguments, recorder.trace(), subject)
    if arguments.plot is not None:
        with storage_errors(arguments.plot):
            engine_load.plot(arguments.plot, subject.title, loads, overheads)
    write_stdout(engine_report(subject, loads, overheads))
    return 0


def read_windows(arguments: argparse.Namespace) -> tuple[int, ...]:
    windows = arguments.windows or (ALL_COUNTS if arguments.random_weights == "nano" else COUNTS)
    counts = read_counts("windows", windows, MAX_WINDOWS, example=COUNTS)
    require_counts(arguments, callers=1)
    if arguments.max_tokens is not None and not 1 <= arguments.max_tokens <= 224:
        raise UsageError("max-tokens must be a whole number from 1 to 224")
    if arguments.random_weights and arguments.model:
        raise UsageError("random weights replace a model: give --random-weights or --model")
    return counts


def open_engine(arguments: argparse.Namespace) -> LocalEngine:
    if arguments.random_weights is None:
        from choral.engine.group import as_local

        return as_local(load_model(arguments, optimize_for="throughput")._engine)
    from choral.bench.random_model import random_engine

    return random_engine(arguments.random_weights, engine_settings(arguments))


def write_trace(arguments: argparse.Namespace, trace: EngineTrace, subject: EngineSubject) -> None:
    from choral.bench.trace import chrome_trace
    from choral.bench.trace_svg import svg

    if arguments.trace is not None:
        with storage_errors(arguments.trace):
            arguments.trace.write_text(chrome_trace(trace), encoding="utf-8")
    if arguments.picture is not None:
        n_callers = len({use.caller for use in trace.slot_uses})
        title = f"A batch over time: {len(trace.slot_uses)} windows of {n_callers} callers ({subject.title})"
        with storage_errors(arguments.picture):
            arguments.picture.write_text(svg(trace, title), encoding="utf-8")


def engine_report(subject: EngineSubject, loads: Sequence[LoadResult], overheads: Sequence[EngineOverhead]) -> str:
    from choral.bench import engine_load
    from choral.bench.report import bars, json_line, verdicts

    is_flat, share = engine_load.is_flat(loads), engine_load.overhead_share(loads, overheads)
    is_within_budget = all(load.cache_bytes <= subject.cache_budget_bytes for load in loads)
    speeds = [(f"{load.windows} windows", load.windows_per_s, f"{load.windows_per_s:.2f}/s") for load in loads]
    targets = [
        ("throughput flat within 10% from 64 windows up", is_flat),
        (f"encoder cache within its {subject.cache_budget_bytes / 1e6:,.0f} MB", is_within_budget),
        (f"engine overhead at 64 rows under 5% of a step ({share:.2%})", share < engine_load.MAX_OVERHEAD_SHARE),
    ]
    fields = {
        **asdict(subject),
        "loads": [{**asdict(load), "overhead_share_at_full": load.overhead_share_at_full} for load in loads],
        "overheads": overheads,
        "is_flat": is_flat,
        "is_cache_within_budget": is_within_budget,
        "overhead_share": share,
    }
    tables = f"{load_table(loads)}\n{bars(speeds)}\nthe engine alone, without a network\n{overhead_table(overheads)}\n"
    head = f"{subject.title}; windows from {subject.workload}\n\n"
    return head + tables + verdicts(targets) + json_line("engine", fields) + "\n"


def load_table(loads: Sequence[LoadResult]) -> str:
    head = ["windows", "per s", "× real time", "CPU ms each", "rows/step", "busy"]
    head += ["step ms", "overhead µs", "overhead", "peak MB", "cache MB"]
    rows = [
        [
            str(load.windows),
            f"{load.windows_per_s:.2f}",
            f"{load.audio_s_per_s:.1f}",
            f"{load.cpu_s / load.windows * 1e3:.1f}",
            f"{load.mean_rows:.1f}",
            f"{load.busy_share:.1%}",
            f"{load.step_ms_at_full:.2f}",
            f"{load.overhead_us_at_full:.0f}",
            f"{load.overhead_share_at_full:.2%}",
            f"{load.peak_bytes / 1e6:,.0f}",
            f"{load.cache_bytes / 1e6:,.0f}",
        ]
        for load in loads
    ]
    return format_table([head, *rows], numbers=range(len(head)))


def overhead_table(overheads: Sequence[EngineOverhead]) -> str:
    head = ["windows", "callers", "rows", "µs per step", "to schedule", "µs to admit a window"]
    rows = [
        [str(one.windows), str(one.callers), str(one.rows)]
        + [f"{value:.0f}" for value in (one.step_us, one.schedule_us, one.admit_us)]
        for one in overheads
    ]
    return format_table([head, *rows], numbers=range(len(head)))
