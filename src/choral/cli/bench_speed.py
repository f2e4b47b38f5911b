"""`choral bench peers`: Choral's speed beside that of other libraries, on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, describe
from choral.cli.console import message, write_stdout
from choral.cli.progress import download_bar
from choral.cli.shared_flags import add_machine_flags, engine_settings
from choral.config import EngineSettings
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.clips import AudioClip
    from choral.bench.corpus import LabelledClip
    from choral.bench.peer_configs import PeerSetup
    from choral.bench.peer_report import LoadReport

PEERS_DESCRIPTION = """\
Speed, word error rate and memory of Choral and of the other Whisper libraries that are installed: the
same clips, the same weights, the same threads, greedy, without second tries, each in a process of its
own, in turn.

FOLDER has speech with transcripts as for `choral bench wer`; without one, five sentences are fetched.
Requests get noise that nobody hears, so that none is the same as another. Libraries that serve one
request at a time are called from many threads or one after another, whichever is faster for them.
"""
LONG_S = 600.0
HEAT_LONG_S = 90.0


def add_peers(actions: argparse._SubParsersAction[Any]) -> None:
    parser: Parser = actions.add_parser(
        "peers",
        help="speed beside other libraries, with the same weights",
        usage="choral bench peers [FOLDER] [options]",
        description=PEERS_DESCRIPTION,
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument(
        "--callers", type=int, default=64, metavar="N", help=describe("short clips sent at once; 0 leaves them out", 64)
    )
    parser.add_argument(
        "--long",
        default=f"{LONG_S:g}",
        metavar="FILE|SECONDS",
        help=describe("a long file, or how long one to join from the clips; 0 leaves it out", f"{LONG_S:g}"),
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help=describe("rounds; medians count", 3))
    parser.add_argument("--limit", type=int, metavar="N", help="use this many clips of the folder (default: all)")
    parser.add_argument(
        "--systems", metavar="NAME,…", help="only those whose names begin so, as in the table (default: all installed)"
    )
    parser.add_argument(
        "--timestamps",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=describe("all find the times of segments, or none does", True),
    )
    parser.add_argument("--quiet", action="store_true", help="no progress: only the tables")
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run_peers, parser=parser)


def run_peers(arguments: argparse.Namespace) -> int:
    from choral.bench import peer_report, wer
    from choral.bench.peer_configs import versions
    from choral.bench.report import json_line

    require_counts(arguments, callers=0, rounds=1, limit=1)
    wer.normaliser("en")  # a missing package is better known before the work than after it
    clips = find_clips(arguments.folder, arguments.limit, arguments.quiet)
    setup = make_setup(arguments)
    short = measure_short(arguments, setup, clips) if arguments.callers else None
    long = measure_long(arguments, setup, clips) if arguments.long != "0" else None
    bars = peer_report.check_bars(short, long)
    write_stdout(f"{versions()}\n\n" + "".join(str(bar) for bar in bars))
    fields = {"model": setup.model, "threads": setup.threads, "timestamps": setup.timestamps}
    write_stdout(json_line("peers", {**fields, "short": short, "long": long, "bars": bars}) + "\n")
    return 0


def measure_short(arguments: argparse.Namespace, setup: PeerSetup, clips: Sequence[LabelledClip]) -> LoadReport:
    from choral.bench.clips import short_clips
    from choral.bench.peer_report import MOST_HEAT_REQUESTS

    sounds = short_clips(clips, arguments.callers)
    return measure(arguments, setup, sounds, sounds[:MOST_HEAT_REQUESTS])


def measure_long(arguments: argparse.Namespace, setup: PeerSetup, clips: Sequence[LabelledClip]) -> LoadReport:
    from dataclasses import replace

    from choral.bench.clips import AudioClip, join_clips, read_samples, short_clips

    pieces = short_clips(clips, len(clips))
    heat = join_clips(pieces, HEAT_LONG_S)
    try:
        whole = join_clips(pieces, float(arguments.long))
    except ValueError:
        text = Path(arguments.long).with_suffix(".txt")
        said = text.read_text(encoding="utf-8-sig") if text.is_file() else None
        whole = AudioClip(read_samples(Path(arguments.long)), said, clips[0].language)
    return measure(arguments, replace(setup, is_long=True, n_callers=1), [whole], [heat])


def measure(
    arguments: argparse.Namespace, setup: PeerSetup, sounds: Sequence[AudioClip], heat: Sequence[AudioClip]
) -> LoadReport:
    from choral.bench.peer_report import chart, measure_load
    from choral.bench.round_robin import RoundRobin

    wanted = tuple(name.strip() for name in (arguments.systems or "").split(","))
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder:
        contest = RoundRobin(Path(folder), tell=(lambda line: None) if arguments.quiet else message)
        report = measure_load(setup, sounds, heat, contest, arguments.rounds, lambda name: name.startswith(wanted))
    write_stdout(chart(report) + "\n")
    return report


def require_counts(arguments: argparse.Namespace, **least: int) -> None:
    for name, lowest in least.items():
        value = getattr(arguments, name)
        if value is not None and value < lowest:
            raise UsageError(f"{name} must be a whole number from {lowest} up")


def find_clips(folder: Path | None, limit: int | None, is_quiet: bool) -> Sequence[LabelledClip]:
    from choral.bench.corpus import LabelledClip, read_corpus

    if folder is not None:
        return read_corpus(folder)[:limit]
    from choral.remote.speech_samples import librivox

    with download_bar("fetching real speech", is_quiet=is_quiet) as on_download:
        samples = librivox(on_progress=on_download)
    return [LabelledClip(sample.path.name, sample.path, sample.text, sample.language) for sample in samples][:limit]


def make_setup(arguments: argparse.Namespace) -> PeerSetup:
    from choral.bench.peer_configs import PeerSetup

    settings = engine_settings(arguments)
    device = pick_device(settings)
    usual = ("float32", "int8") if device == "cpu" else ("float16", "int8")
    return PeerSetup(
        model=resolve_model(arguments.model, device, arguments.quiet),
        device=device,
        threads=settings.threads or os.cpu_count() or 1,
        compute_types=usual if settings.compute_type == "auto" else (settings.compute_type,),
        engines=("torch", "ctranslate2") if settings.engine == "auto" else (settings.engine,),
        n_callers=arguments.callers,
        timestamps=arguments.timestamps,
        is_long=False,
    )


def pick_device(settings: EngineSettings) -> str:
    from choral.api import uses_cuda

    if settings.device != "auto":
        return settings.device
    return "cuda" if importlib.util.find_spec("torch") is not None and uses_cuda(settings) else "cpu"


def resolve_model(name: str | None, device: str, is_quiet: bool) -> Path:
    """The files of the model, fetched first if needed."""
    from choral.model.store import ModelStore, default_model

    name = name or default_model(cuda=device != "cpu")
    with download_bar(f"loading {name}", is_quiet=is_quiet) as on_download:
        return ModelStore().resolve(name, on_progress=on_download)
