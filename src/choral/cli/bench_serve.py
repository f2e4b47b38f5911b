"""`choral bench serve`: what HTTP costs beside the engine, and whether a long load leaves anything behind."""

from __future__ import annotations

import argparse
import dataclasses
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, describe
from choral.cli.bench_serve_tables import load_table, soak_table, told_verdicts
from choral.cli.bench_speed import pick_device, require_counts, resolve_model
from choral.cli.bench_strategies import any_clips
from choral.cli.console import message, write_stdout
from choral.cli.shared_flags import add_machine_flags, engine_settings, machine_arguments
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.serve_load import ServeTargets

DESCRIPTION = """\
Requests to a real server, from so many callers at once, and the same requests through an engine without
HTTP, in turns: throughput, latency, time to the first text of streams, and how quickly /health/live
answers meanwhile. Reading and decoding the audio is part of both.

With --soak: a mixed load for so long (formats, streams, clients that go away, files that are no audio), and
whether the server's memory, open files and temporary files stay as they are.

FOLDER has speech in clips of at most 30 s; without one, five sentences are fetched.
"""
EPILOG = """\
exit codes: 0 every request was answered as it should; 1 some were not, or (--soak) something grew

A server that asks for a key gets the one in CHORAL_API_KEY.
"""
CONCURRENCY = "1,8,32,128"
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def add_serve(actions: argparse._SubParsersAction[Any]) -> None:
    parser: Parser = actions.add_parser(
        "serve",
        help="the server beside the engine without HTTP, and a soak",
        usage="choral bench serve [FOLDER] [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument(
        "--concurrency", default=CONCURRENCY, metavar="N,N,…", help=describe("callers at once", CONCURRENCY)
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=64,
        metavar="N",
        help=describe("in a round, and at least two for each caller", 64),
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help=describe("of each", 3))
    parser.add_argument(
        "--url", metavar="URL", help="a server that is running, here or elsewhere, and no engine beside it"
    )
    parser.add_argument(
        "--no-model", action="store_true", help="a server whose engine takes no time: what it takes by itself"
    )
    parser.add_argument(
        "--soak", type=duration_s, metavar="TIME", help="a mixed load for this long instead: 90s, 10m, 1h"
    )
    parser.add_argument("--clients", type=int, default=32, metavar="N", help=describe("of the soak, at once", 32))
    parser.add_argument("--quiet", action="store_true", help="no progress: only the table")
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run_serve, parser=parser)


def duration_s(given: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", given)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{given!r} is no time: write 90s, 10m or 1h")
    return float(found[1]) * UNITS_S[found[2] or "s"]


def run_serve(arguments: argparse.Namespace) -> int:
    from choral.bench.process_tree import require_linux

    require_linux()
    require_counts(arguments, requests=1, rounds=1, clients=1)
    concurrency = counts(arguments.concurrency)
    if arguments.url is not None and arguments.soak is not None:
        raise UsageError("a soak looks into the server's process: leave out --url, and it starts one")
    if arguments.no_model and (arguments.url is not None or arguments.soak is not None):
        raise UsageError("--no-model starts a server of its own: leave out --url and --soak")
    if arguments.url is not None and not arguments.url.startswith("http://"):
        raise UsageError(f"url is {arguments.url!r}; it must look like http://127.0.0.1:8000")
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder:
        if arguments.soak is not None:
            return run_soak(arguments, Path(folder))
        return run_load(arguments, concurrency, Path(folder))


def counts(given: str) -> tuple[int, ...]:
    parts = [part.strip() for part in given.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"concurrency is {given!r}; it must be numbers from 1 up, separated by commas")
    return tuple(map(int, parts))


def run_load(arguments: argparse.Namespace, concurrency: tuple[int, ...], folder: Path) -> int:
    from choral.bench import serve_load
    from choral.bench.clips import short_clips
    from choral.bench.report import json_line

    clips = any_clips(arguments.folder, arguments.quiet)
    sounds = short_clips(clips, len(clips))
    plan = serve_load.LoadSettings(concurrency, arguments.requests, arguments.rounds)
    with subjects_of(arguments, folder) as subjects:
        levels = serve_load.measure(plan, sounds, subjects, folder, teller(arguments))
    write_stdout(load_table(levels) + told_verdicts(serve_load.verdicts(levels)))
    write_stdout(json_line("serve", {"plan": plan, "levels": levels}) + "\n")
    return 1 if any(level.server.failures for level in levels) else 0


@contextmanager
def subjects_of(arguments: argparse.Namespace, folder: Path) -> Iterator[ServeTargets]:
    """A server and an engine with the same flags; or a server that is there already."""
    from choral.bench.endpoints import Endpoint, EndpointSpec
    from choral.bench.serve_load import ServeTargets
    from choral.bench.server_process import ServerProcess

    with ExitStack() as stack:
        if arguments.url is not None:
            callers = stack.enter_context(closing(Endpoint(EndpointSpec(arguments.url))))
            yield ServeTargets(arguments.url, None, callers, None)
            return
        settings = engine_settings(arguments)
        model = resolve_model(arguments.model, pick_device(settings), arguments.quiet)
        program = "choral.bench.idle_server" if arguments.no_model else "choral"
        server = stack.enter_context(ServerProcess(server_flags(arguments), folder, program))
        callers = stack.enter_context(closing(Endpoint(EndpointSpec(server.url))))
        if arguments.no_model:
            yield ServeTargets(server.url, server.pid, callers, None)
            return
        engine = stack.enter_context(closing(Endpoint(EndpointSpec(None, str(model), dataclasses.asdict(settings)))))
        yield ServeTargets(server.url, server.pid, callers, engine)


def server_flags(arguments: argparse.Namespace) -> list[str]:
    """Where nobody named a model, both take the one that suits the machine."""
    model = resolve_model(arguments.model, pick_device(engine_settings(arguments)), arguments.quiet)
    return [flag for flag in machine_arguments(arguments) if not flag.startswith("--model=")] + [f"--model={model}"]


def run_soak(arguments: argparse.Namespace, folder: Path) -> int:
    from choral.bench import soak
    from choral.bench.clips import short_clips
    from choral.bench.report import json_line
    from choral.bench.server_process import ServerProcess

    clips = any_clips(arguments.folder, arguments.quiet)
    sounds = short_clips(clips, len(clips))
    plan = soak.SoakSettings(arguments.soak, arguments.clients)
    with ServerProcess(server_flags(arguments), folder) as server:
        report = soak.measure(plan, sounds, server, folder, teller(arguments))
    write_stdout(soak_table(report) + told_verdicts(report.verdicts()))
    write_stdout(json_line("soak", {"plan": plan, "report": report}) + "\n")
    return 0 if all(holds for _, holds in report.verdicts()) else 1


def teller(arguments: argparse.Namespace) -> Any:
    return (lambda line: None) if arguments.quiet else message
