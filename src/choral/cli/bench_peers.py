"""`choral bench peers`: speed, accuracy and memory of Choral beside other Whisper libraries."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser, describe
from choral.cli.bench import add_folder, add_quiet, find_clips, pick_device, progress, require_counts, resolve_model
from choral.cli.console import write_stdout
from choral.cli.shared_flags import add_machine_flags, engine_settings
from choral.common.processor import default_threads
from choral.errors import UsageError

if TYPE_CHECKING:
    from choral.bench.clips import AudioClip
    from choral.bench.labelled_clips import LabelledClip
    from choral.bench.peer_configs import PeerSetup
    from choral.bench.peer_report import LoadReport

USAGE = "choral bench peers [FOLDER] [options]"
DESCRIPTION = """\
Speed, word error rate and memory of Choral and of the other Whisper libraries that are installed: the
same clips, weights and threads, greedy, without retries, each in its own process, in turn.

FOLDER has speech with transcripts as for `choral bench wer`; without one, five sentences are downloaded.
Inaudible noise is added to every request, so that no cache helps. Libraries that serve one request at a
time are called from many threads or one request after another, whichever is faster for them.
"""
LONG_S, TRIAL_LONG_S, MAX_TRIAL_CLIPS = 600.0, 90.0, 16


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
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
        "--systems",
        metavar="NAME,…",
        help="only systems whose names in the table start with one of these (default: all installed)",
    )
    parser.add_argument(
        "--timestamps",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=describe("all systems predict the times of segments, or none does", True),
    )
    add_quiet(parser)
    add_machine_flags(parser.add_argument_group("model and machine"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from choral.bench import peer_report, wer
    from choral.bench.clips import join_clips, short_clips
    from choral.bench.peer_configs import versions
    from choral.bench.report import json_line

    require_counts(arguments, callers=0, rounds=1, limit=1)
    wer.normaliser("en")  # fail before the work if the package is missing
    setup = make_setup(arguments)
    labelled = known_to(setup.model, find_clips(arguments.folder, arguments.limit, arguments.quiet))
    short = long = None
    if arguments.callers:
        clips = short_clips(labelled, arguments.callers)
        short = measure_load(arguments, setup, clips, clips[:MAX_TRIAL_CLIPS])
    if arguments.long != "0":
        clips = short_clips(labelled, len(labelled))
        long_clip = read_long_clip(arguments.long, clips)
        trial_clip = join_clips(clips, TRIAL_LONG_S)
        long = measure_load(arguments, replace(setup, is_long=True, n_callers=1), [long_clip], [trial_clip])
    targets = peer_report.check_targets(short, long)
    write_stdout(f"{versions()}\n\n" + "".join(str(target) for target in targets))
    fields = {"model": setup.model, "threads": setup.threads, "timestamps": setup.timestamps}
    write_stdout(json_line("peers", {**fields, "short": short, "long": long, "targets": targets}) + "\n")
    return 0


def known_to(model: Path, clips: Sequence[LabelledClip]) -> Sequence[LabelledClip]:
    """The clips in a language that the model knows, by its name."""
    if ".en" not in model.name:
        return clips
    english = [clip for clip in clips if clip.language in (None, "en", "english")]
    if not english:
        raise UsageError(f"{model.name} is English-only, and no clip is in English: choose another model or folder")
    return english


def read_long_clip(value: str, clips: Sequence[AudioClip]) -> AudioClip:
    """A file, with its transcript if there is one beside it, or clips joined to this many seconds."""
    from choral.bench.clips import AudioClip, join_clips, read_samples

    try:
        return join_clips(clips, float(value))
    except ValueError:
        transcript = Path(value).with_suffix(".txt")
        text = transcript.read_text(encoding="utf-8-sig") if transcript.is_file() else None
        return AudioClip(read_samples(Path(value)), text, clips[0].language)


def measure_load(
    arguments: argparse.Namespace, setup: PeerSetup, clips: Sequence[AudioClip], trial_clips: Sequence[AudioClip]
) -> LoadReport:
    from choral.bench.peer_report import chart, measure_load
    from choral.bench.round_robin import RoundRobin

    prefixes = tuple(name.strip() for name in (arguments.systems or "").split(","))
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder:
        round_robin = RoundRobin(Path(folder), progress(arguments))
        report = measure_load(
            setup, clips, trial_clips, round_robin, arguments.rounds, lambda name: name.startswith(prefixes)
        )
    write_stdout(chart(report) + "\n")
    return report


def make_setup(arguments: argparse.Namespace) -> PeerSetup:
    from choral.bench.peer_configs import PeerSetup

    settings = engine_settings(arguments)
    device = pick_device(settings)
    default_types = ("float32", "int8") if device == "cpu" else ("float16", "int8")
    return PeerSetup(
        model=resolve_model(arguments.model, device, arguments.quiet),
        device=device,
        threads=settings.threads or default_threads(),
        compute_types=default_types if settings.compute_type == "auto" else (settings.compute_type,),
        engines=("torch", "ctranslate2") if settings.engine == "auto" else (settings.engine,),
        n_callers=arguments.callers,
        timestamps=arguments.timestamps,
        is_long=False,
    )
