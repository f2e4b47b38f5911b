"""`choral bench engine|fairness`: how the engine takes a load, and what a short clip waits for beside a long file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, describe
from choral.cli.console import message, write_stdout
from choral.cli.inputs import expand
from choral.cli.shared_flags import add_machine_flags, load_model
from choral.config import EngineSettings
from choral.errors import UsageError
from choral.storage import storage_errors

if TYPE_CHECKING:
    from choral.bench.material import Material
    from choral.bench.trace import Trace
    from choral.cli.bench_engine_tables import Subject
    from choral.engine.group import AnyEngine

ENGINE_DESCRIPTION = """\
How the engine takes a load: so many windows queued at once, all of them different.

AUDIO is what the windows are cut from: files or folders (default: a sample of speech). Decoding is
greedy, in English, with timestamps, without retries. --trace and --picture show the last load.
"""
FAIRNESS_DESCRIPTION = """\
How long a clip of 5 s takes on an idle engine, while a file of an hour is in it, and if first come
were first served: then the clip is sent in the file's name, and waits behind the windows that the
file has in the engine.

AUDIO is what clip and file are made from: files or folders of speech (default: a sample of speech).
"""
COUNTS, ALL_COUNTS, MOST_WINDOWS = "1,4,16,64,128", "1,4,16,64,256,1024,4096", 4096
SHAPES = ("nano", "tiny", "base", "small")


def add_engine(actions: argparse._SubParsersAction[Any]) -> None:
    engine: Parser = actions.add_parser(
        "engine",
        help="throughput, memory and the engine's own time under load",
        usage="choral bench engine [AUDIO …] [options]",
        description=ENGINE_DESCRIPTION,
    )
    engine.add_argument("audio", nargs="*", metavar="AUDIO", help=argparse.SUPPRESS)
    engine.add_argument(
        "--windows",
        metavar="N,N,…",
        help=f"how many to queue, one load after another, {MOST_WINDOWS} at most "
        f"(default: {COUNTS}; with the random weights nano: {ALL_COUNTS})",
    )
    engine.add_argument(
        "--callers",
        type=int,
        metavar="N",
        help="so many callers, the first with half of the windows (default: one a window)",
    )
    engine.add_argument(
        "--max-tokens", type=int, metavar="N", help="most tokens of a window (default: 64; with random weights: 16)"
    )
    engine.add_argument(
        "--random-weights",
        choices=SHAPES,
        metavar="SHAPE",
        help=f"no model, but random weights in the shape of {', '.join(SHAPES)} (nano: 1 layer, 64 wide)",
    )
    engine.add_argument("--trace", type=Path, metavar="FILE", help="write what happened when, for Perfetto (.json)")
    engine.add_argument("--picture", type=Path, metavar="FILE", help="draw the batch over time (.svg)")
    engine.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures (.png; needs matplotlib)")
    engine.add_argument("--quiet", action="store_true", help="no progress: only the table")
    add_machine_flags(engine.add_argument_group("model and machine"))
    engine.set_defaults(run=run_engine, parser=engine)


def add_fairness(actions: argparse._SubParsersAction[Any]) -> None:
    fairness: Parser = actions.add_parser(
        "fairness",
        help="what a short clip waits for beside an hour of audio",
        usage="choral bench fairness [AUDIO …] [options]",
        description=FAIRNESS_DESCRIPTION,
    )
    fairness.add_argument("audio", nargs="*", metavar="AUDIO", help=argparse.SUPPRESS)
    fairness.add_argument("--sends", type=int, default=9, metavar="N", help=describe("how often the clip is sent", 9))
    fairness.add_argument(
        "--file-s", type=float, default=3600.0, metavar="SECONDS", help=describe("length of the file", 3600)
    )
    fairness.add_argument("--quiet", action="store_true", help="no progress: only the result")
    add_machine_flags(fairness.add_argument_group("model and machine"))
    fairness.set_defaults(run=run_fairness, parser=fairness)


def run_engine(arguments: argparse.Namespace) -> int:
    from choral.bench import engine_load
    from choral.bench.engine_plot import plot, require_plots
    from choral.bench.trace import Recorder
    from choral.cli.bench_engine_tables import Subject, engine_report

    counts = read_counts(arguments)
    if arguments.plot is not None:
        require_plots()
    material = read_material(arguments.audio)
    with closing(open_engine(arguments)) as engine:
        recorder = Recorder(engine.capacity.n_slots) if arguments.trace or arguments.picture else None
        loads = engine_load.measure(
            engine,
            material,
            counts,
            n_callers=arguments.callers,
            max_tokens=arguments.max_tokens or (16 if arguments.random_weights else 64),
            on_step=recorder,
            on_load=lambda load: note(arguments, f"{load.windows} windows: {load.windows_per_s:.2f} a second"),
        )
        subject = Subject.of(arguments, engine, material)
    own = [engine_load.own_time(*load) for load in engine_load.OWN_LOADS]
    if recorder is not None:
        draw(arguments, recorder.trace(), subject)
    if arguments.plot is not None:
        with storage_errors(arguments.plot):
            plot(arguments.plot, subject.title, loads, own)
    write_stdout(engine_report(subject, loads, own))
    return 0


def run_fairness(arguments: argparse.Namespace) -> int:
    from choral.bench.fairness import FairnessBench
    from choral.cli.bench_engine_tables import Subject, fairness_report

    if arguments.sends < 1:
        raise UsageError("sends must be a whole number from 1 up")
    if not 60 <= arguments.file_s <= 36_000:
        raise UsageError("file-s must be from 60 to 36000 seconds")
    material = read_material(arguments.audio)
    with closing(load_model(arguments)) as model:
        engine, transcriber = model._engine, model._transcriber
        told = partial(tell_send, arguments)
        measured = FairnessBench(engine, transcriber, material, on_send=told).measure(arguments.sends, arguments.file_s)
        subject = Subject.of(arguments, engine, material)
    write_stdout(fairness_report(subject, measured, arguments.file_s))
    return 0


def read_counts(arguments: argparse.Namespace) -> list[int]:
    given = arguments.windows or (ALL_COUNTS if arguments.random_weights == "nano" else COUNTS)
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_WINDOWS for part in parts):
        raise UsageError(f"windows is {given!r}; it must be numbers from 1 to {MOST_WINDOWS}, for example {COUNTS}")
    if arguments.callers is not None and arguments.callers < 1:
        raise UsageError("callers must be a whole number from 1 up")
    if arguments.max_tokens is not None and not 1 <= arguments.max_tokens <= 224:
        raise UsageError("max-tokens must be a whole number from 1 to 224")
    if arguments.random_weights and arguments.model:
        raise UsageError("random weights are instead of a model: give --random-weights or --model")
    return [int(part) for part in parts]


def read_material(given: Sequence[str]) -> Material:
    from choral.bench.material import material_of

    inputs = expand(given)
    if inputs.failures:
        first = inputs.failures[0]
        raise type(first.error)(str(first)) from first.error
    return material_of([item.source for item in inputs.found])


def open_engine(arguments: argparse.Namespace) -> AnyEngine:
    if arguments.random_weights is None:
        return load_model(arguments)._engine
    from choral.bench.random_model import random_engine

    settings = EngineSettings(
        engine=arguments.engine,
        device=arguments.device,
        compute_type=arguments.compute_type,
        threads=arguments.threads,
    )
    return random_engine(arguments.random_weights, settings)


def tell_send(arguments: argparse.Namespace, name: str, seconds: float) -> None:
    note(arguments, f"{name}: {seconds:.2f} s")


def note(arguments: argparse.Namespace, line: str) -> None:
    if not arguments.quiet:
        message(line)


def draw(arguments: argparse.Namespace, trace: Trace, subject: Subject) -> None:
    from choral.bench.picture import svg
    from choral.bench.trace import chrome_trace

    if arguments.trace is not None:
        with storage_errors(arguments.trace):
            arguments.trace.write_text(chrome_trace(trace), encoding="utf-8")
    if arguments.picture is not None:
        n_callers = len({stay.caller for stay in trace.stays})
        title = f"A batch over time: {len(trace.stays)} windows of {n_callers} callers ({subject.title})"
        with storage_errors(arguments.picture):
            arguments.picture.write_text(svg(trace, title), encoding="utf-8")
