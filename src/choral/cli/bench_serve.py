"""`choral bench serve`: the overhead of HTTP over the engine alone, and a soak test."""

from __future__ import annotations

import argparse
import dataclasses
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser, describe
from choral.cli.bench import (
    add_folder,
    add_quiet,
    add_random_weights,
    find_short_clips,
    pick_device,
    progress,
    read_counts,
    require_counts,
    resolve_model,
)
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import add_machine_flags, engine_settings, machine_arguments
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.serve_load import ConcurrencyResult, ServeTargets, SideResult
    from choral.bench.soak import SoakReport

USAGE = "choral bench serve [FOLDER] [options]"
DESCRIPTION = """\
Sends requests to a real server from --concurrency callers at once, alternating with the same requests through
an engine without HTTP: throughput, latency, time to the first text of streams, and how quickly /health/live
responds meanwhile. Reading and decoding the audio is part of both.

With --soak, sends a mixed load (formats, streams, clients that disconnect, files that are not audio), and
checks that the server's memory, open files and temporary files do not grow.

With --random-weights, server and engine have random weights in the shape of a model, and every request
gets 27 tokens: the text is nonsense, the speed is real. The engine's side is then the engine alone, with
samples in memory.

FOLDER has clips of speech of at most 30 s; without one, five sentences are downloaded.
"""
EPILOG = """\
exit codes: 0 every response was right; 1 some were wrong, or (--soak) memory, open files or temporary files grew

A server that requires a key gets the one in CHORAL_API_KEY.
"""
CONCURRENCY, MAX_CALLERS = "1,8,32,128", 10_000
NULL_SERVER, RANDOM_SERVER = "choral.bench.null_runner", "choral.bench.random_server"
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
SIDE = ("requests/s", "audio s/s", "p50 s", "p95 s", "p99 s", "cpu s", "failed")
MAX_FAILURES_SHOWN = 5


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument(
        "--concurrency", default=CONCURRENCY, metavar="N,N,…", help=describe("concurrent callers", CONCURRENCY)
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=64,
        metavar="N",
        help=describe("requests in a round, at least two for each caller", 64),
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help=describe("rounds of each measurement", 3))
    parser.add_argument("--url", metavar="URL", help="measure this running server, without the engine for comparison")
    parser.add_argument(
        "--no-model",
        action="store_true",
        help="measure the overhead of the server alone, with an engine that takes no time",
    )
    add_random_weights(parser)
    parser.add_argument(
        "--soak", type=duration_s, metavar="TIME", help="run the soak test for this long instead: 90s, 10m, 1h"
    )
    parser.add_argument(
        "--clients", type=int, default=32, metavar="N", help=describe("concurrent clients of the soak test", 32)
    )
    add_quiet(parser)
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run)


def duration_s(value: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{value!r} is not a duration: write 90s, 10m or 1h")
    return float(match[1]) * UNITS_S[match[2] or "s"]


def run(arguments: argparse.Namespace) -> int:
    from choral.bench.process_tree import require_linux

    require_linux()
    require_counts(arguments, requests=1, rounds=1, clients=1)
    concurrency = read_counts("concurrency", arguments.concurrency, MAX_CALLERS, example=CONCURRENCY)
    if arguments.url is not None and arguments.soak is not None:
        raise UsageError("a soak reads the server's process: leave out --url, and it starts a server")
    for flag in ("no_model", "random_weights"):
        if getattr(arguments, flag) and (arguments.url is not None or arguments.soak is not None):
            raise UsageError(f"--{flag.replace('_', '-')} starts its own server: leave out --url and --soak")
    if arguments.no_model and arguments.random_weights:
        raise UsageError("choose one of --no-model and --random-weights")
    if arguments.url is not None and not arguments.url.startswith("http://"):
        raise UsageError(f"url is {arguments.url!r}; it must look like http://127.0.0.1:8000")
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder:
        if arguments.soak is not None:
            return run_soak(arguments, Path(folder))
        return run_load(arguments, concurrency, Path(folder))


def run_load(arguments: argparse.Namespace, concurrency: tuple[int, ...], folder: Path) -> int:
    from choral.bench import serve_load
    from choral.bench.report import json_line, verdicts

    clips = find_short_clips(arguments.folder, arguments.quiet)
    settings = serve_load.LoadSettings(concurrency, arguments.requests, arguments.rounds)
    with open_targets(arguments, folder) as targets:
        results = serve_load.measure(settings, clips, targets, folder, progress(arguments))
    write_stdout(load_table(results) + verdicts(serve_load.check_targets(results)))
    write_stdout(json_line("serve", {"settings": settings, "levels": results}) + "\n")
    return 1 if any(result.server.failures for result in results) else 0


@contextmanager
def open_targets(arguments: argparse.Namespace, folder: Path) -> Iterator[ServeTargets]:
    """A server and an engine with the same flags; or a server that is already running."""
    from choral.bench.endpoints import Endpoint, EndpointSpec, ServerCallers
    from choral.bench.random_server import FORM_FIELDS
    from choral.bench.serve_load import ServeTargets
    from choral.bench.server_process import ServerProcess

    with ExitStack() as stack:
        if arguments.url is not None:
            callers = stack.enter_context(ServerCallers(arguments.url))
            yield ServeTargets(arguments.url, None, callers, None)
            return
        shape, settings = arguments.random_weights, dataclasses.asdict(engine_settings(arguments))
        model = shape or str(find_model(arguments))
        program = RANDOM_SERVER if shape else NULL_SERVER if arguments.no_model else "choral"
        server = stack.enter_context(ServerProcess(server_flags(arguments, model), folder, program))
        callers = stack.enter_context(ServerCallers(server.url, FORM_FIELDS if shape else None))
        if arguments.no_model:
            yield ServeTargets(server.url, server.pid, callers, None)
            return
        spec = EndpointSpec(None, None if shape else model, settings, random_weights=shape)
        engine = stack.enter_context(Endpoint(spec))
        yield ServeTargets(server.url, server.pid, callers, engine, has_same_texts=shape is None)


def find_model(arguments: argparse.Namespace) -> Path:
    return resolve_model(arguments.model, pick_device(engine_settings(arguments)), arguments.quiet)


def server_flags(arguments: argparse.Namespace, model: str) -> list[str]:
    flags = [flag for flag in machine_arguments(arguments) if not flag.startswith("--model=")]
    return [*flags, f"--model={model}"]


def run_soak(arguments: argparse.Namespace, folder: Path) -> int:
    from choral.bench import soak
    from choral.bench.report import json_line, verdicts
    from choral.bench.server_process import ServerProcess

    clips = find_short_clips(arguments.folder, arguments.quiet)
    settings = soak.SoakSettings(arguments.soak, arguments.clients)
    with ServerProcess(server_flags(arguments, str(find_model(arguments))), folder) as server:
        report = soak.measure(settings, clips, server, folder, progress(arguments))
    write_stdout(soak_table(report) + verdicts(report.check_targets()))
    write_stdout(json_line("soak", {"settings": settings, "report": report}) + "\n")
    return 0 if all(holds for _, holds in report.check_targets()) else 1


def load_table(results: Sequence[ConcurrencyResult]) -> str:
    rows: list[tuple[str, ...]] = [("callers", "", *SIDE, "first text p50, p95 s", "/health/live p50, p99 ms")]
    notes = ""
    for result in results:
        first_text = f"{result.first_text_p50_s:.2f}, {result.first_text_p95_s:.2f}"
        live = f"{result.live_p50_s * 1e3:.1f}, {result.live_p99_s * 1e3:.1f}"
        rows.append((str(result.callers), "server", *side_cells(result.server), first_text, live))
        if result.engine is not None:
            rows.append(("", "engine", *side_cells(result.engine), "", ""))
        if result.share is not None:
            notes += (
                f"{result.callers} callers: {result.share:.1%} of the engine's throughput, {same_texts(result)}"
                f"the callers used {result.callers_cpu_s:.1f} s of CPU time\n"
            )
    late_ms = max(result.late_p99_s for result in results) * 1e3
    notes += f"this machine wakes a sleeping thread up to {late_ms:.1f} ms late (p99) under this load\n"
    failures = [failure for result in results for failure in result.server.failures]
    return f"{format_table(rows, numbers=(0, *range(2, len(rows[0]))))}\n{notes}{failure_lines(failures)}"


def same_texts(result: ConcurrencyResult) -> str:
    if result.different_texts is None:
        return ""
    return f"{result.different_texts} texts differ, " if result.different_texts else "all texts the same, "


def side_cells(side: SideResult) -> tuple[str, ...]:
    cpu = "" if side.cpu_s is None else f"{side.cpu_s:.0f}"
    seconds = (f"{value:.2f}" for value in (side.p50_s, side.p95_s, side.p99_s))
    return (f"{side.requests_per_s:.2f}", f"{side.audio_s_per_s:.0f}", *seconds, cpu, str(len(side.failures)))


def soak_table(report: SoakReport) -> str:
    rows: list[tuple[str, ...]] = [
        ("s", "MB", "open files", "temporary", "answered", "abandoned", "rejected", "failed")
    ]
    for sample in (report.idle_before, *report.samples, report.idle_after):
        counts = sample.tally
        numbers = (counts.n_good, counts.n_abandoned, counts.n_bad, len(counts.failures))
        cells = map(str, (sample.open_files, sample.temp_files, *numbers))
        rows.append((f"{sample.at_s:.0f}", f"{sample.memory_bytes / 1e6:,.0f}", *cells))
    counts = report.counts
    facts = (
        f"memory changed by at most {report.memory_drift:.1%} after {report.settle_s:.0f} s, "
        f"{report.open_files_drift:+d} open files, {counts.n_changed} texts changed, "
        f"{counts.n_bad_taken} invalid requests were not rejected\n"
    )
    return f"{format_table(rows, numbers=range(len(rows[0])))}\n{facts}{failure_lines(counts.failures)}"


def failure_lines(failures: Sequence[str]) -> str:
    return "".join(f"failed: {failure}\n" for failure in failures[:MAX_FAILURES_SHOWN])
