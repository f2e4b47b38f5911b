"""`choral bench wer` and `choral bench peers`: accuracy and speed of Choral beside other Whisper libraries."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import add_flags, add_subcommand, describe, given_options, read_options
from choral.cli.bench import add_folder, add_quiet, find_clips, pick_device, progress, require_counts, resolve_model
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import add_machine_flags, engine_settings, load_model
from choral.types import TranscribeOptions

if TYPE_CHECKING:
    from choral.bench.clips import AudioClip
    from choral.bench.corpus import LabelledClip
    from choral.bench.peer_configs import PeerSetup
    from choral.bench.peer_report import LoadReport
    from choral.bench.wer import Score, WerReport

WER_DESCRIPTION = """\
Word error rate of a model on a FOLDER of speech with transcripts, normalised as OpenAI does.

The folder has a manifest.jsonl (objects with "file", "text" and optionally "language"), LibriSpeech's
*.trans.txt files, or a .txt beside each audio file.
"""
WER_FLAGS = ("language", "mode", "beam_size", "temperature")
PEERS_DESCRIPTION = """\
Speed, word error rate and memory of Choral and of the other Whisper libraries that are installed: the
same clips, weights and threads, greedy, without retries, each in its own process, in turn.

FOLDER has speech with transcripts as for `choral bench wer`; without one, five sentences are downloaded.
Inaudible noise is added to every request, so that no cache helps. Libraries that serve one request at a
time are called from many threads or one request after another, whichever is faster for them.
"""
LONG_S, TRIAL_LONG_S, MAX_TRIAL_CLIPS = 600.0, 90.0, 16


def add_wer(actions: argparse._SubParsersAction[Any]) -> None:
    wer = add_subcommand(
        actions,
        "wer",
        run_wer,
        "word error rate on a folder with transcripts",
        usage="choral bench wer FOLDER [options]",
        description=WER_DESCRIPTION,
    )
    wer.add_argument("folder", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    wer.add_argument("--limit", type=int, metavar="N", help="stop after this many clips (default: all)")
    wer.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=describe("run openai-whisper and faster-whisper too, where installed", True),
    )
    add_quiet(wer)
    add_machine_flags(wer.add_argument_group("model and machine"))
    add_flags(wer.add_argument_group("transcription"), TranscribeOptions, WER_FLAGS)


def run_wer(arguments: argparse.Namespace) -> int:
    from choral.bench import wer
    from choral.bench.corpus import read_corpus
    from choral.bench.peers import ChoralPeer, Peer

    require_counts(arguments, limit=1)
    clips = read_corpus(arguments.folder)[: arguments.limit]
    wer.normaliser("en")  # fail before the work if the package is missing
    options = read_options(given_options(arguments, TranscribeOptions))
    n_done = 0

    def on_clip(clip: LabelledClip, scores: Mapping[str, Score]) -> None:
        nonlocal n_done
        n_done += 1
        rates = ", ".join(f"{name} {score.percent:.1f}%" for name, score in scores.items())
        progress(arguments)(f"[{n_done}/{len(clips)}] {clip.name}: {rates}")

    with closing(load_model(arguments)) as model:
        others, notes = wer.open_peers(model, options) if arguments.peers else ({}, [])
        peers: dict[str, Peer] = {"choral": ChoralPeer(model, options), **others}
        report = wer.measure(model.name, clips, peers, options.language, notes, on_clip)
    write_stdout(wer_table(report) + report.json_line() + "\n")
    return 0


def wer_table(report: WerReport) -> str:
    """Word error rates in percent, a row for each clip, and the total."""
    names = list(report.scores)
    rows: list[list[str]] = [["clip", "words", *names]]
    for index, clip in enumerate(report.clips):
        scores = [report.scores[name][index] for name in names]
        rows.append([clip.name, str(scores[0].n_words), *(f"{score.percent:.1f}" for score in scores)])
    totals = [report.total(name) for name in names]
    rows.append(["total", str(totals[0].n_words), *(f"{total.percent:.2f}" for total in totals)])
    rows.append(["seconds", "", *(f"{report.spent_s[name]:.1f}" for name in names)])
    notes = "".join(f"note: {note}\n" for note in report.notes)
    return (
        f"word error rate in percent, {report.model}\n\n{format_table(rows, numbers=range(1, len(names) + 2))}\n{notes}"
    )


def add_peers(actions: argparse._SubParsersAction[Any]) -> None:
    parser = add_subcommand(
        actions,
        "peers",
        run_peers,
        "speed compared with other libraries, with the same weights",
        usage="choral bench peers [FOLDER] [options]",
        description=PEERS_DESCRIPTION,
    )
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


def run_peers(arguments: argparse.Namespace) -> int:
    from choral.bench import peer_report, wer
    from choral.bench.clips import join_clips, short_clips
    from choral.bench.peer_configs import versions
    from choral.bench.report import json_line

    require_counts(arguments, callers=0, rounds=1, limit=1)
    wer.normaliser("en")  # fail before the work if the package is missing
    labelled = find_clips(arguments.folder, arguments.limit, arguments.quiet)
    setup = make_setup(arguments)
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
    write_stdout(json_line("peers", {**fields, "short": short, "long": long, "bars": targets}) + "\n")
    return 0


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
        threads=settings.threads or os.cpu_count() or 1,
        compute_types=default_types if settings.compute_type == "auto" else (settings.compute_type,),
        engines=("torch", "ctranslate2") if settings.engine == "auto" else (settings.engine,),
        n_callers=arguments.callers,
        timestamps=arguments.timestamps,
        is_long=False,
    )
