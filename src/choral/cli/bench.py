"""`choral bench`: measure speed and accuracy on this machine; the last line of each benchmark is JSON.

This module has `choral bench wer` and what the benchmarks share: finding speech, and checking numbers.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from choral.cli.arguments import Parser, add_flags, add_subcommands, describe, given_options, read_options
from choral.cli.console import format_table, message, write_stdout
from choral.cli.inputs import expand
from choral.cli.progress import download_bar
from choral.cli.shared_flags import add_machine_flags, load_model
from choral.config import EngineSettings
from choral.errors import AudioNotFound, UsageError
from choral.types import TranscribeOptions

if TYPE_CHECKING:
    from choral.bench.clips import AudioClip
    from choral.bench.corpus import LabelledClip
    from choral.bench.wer import Score, WerReport
    from choral.bench.workload import Workload

USAGE = "choral bench COMMAND …"
DESCRIPTION = "Measure speed and accuracy on this machine. The last line of each benchmark is JSON."
EPILOG = None
WER_DESCRIPTION = """\
Word error rate of a model on a FOLDER of speech with transcripts, normalised as OpenAI does.

The folder has a manifest.jsonl (objects with "file", "text" and maybe "language"), LibriSpeech's
*.trans.txt files, or a .txt beside each audio file.
"""
WER_FLAGS = ("language", "mode", "beam_size", "temperature")


def add_arguments(parser: Parser) -> None:
    from choral.cli import bench_engine, bench_gpu, bench_serve, bench_speed, bench_strategies

    actions = add_subcommands(parser)
    _add_wer(actions)
    bench_speed.add_peers(actions)
    bench_strategies.add_strategies(actions)
    bench_engine.add_engine(actions)
    bench_gpu.add_gpu(actions)
    bench_serve.add_serve(actions)


def _add_wer(actions: argparse._SubParsersAction[Any]) -> None:
    wer: Parser = actions.add_parser(
        "wer",
        help="word error rate on a folder with transcripts",
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
    wer.add_argument("--quiet", action="store_true", help="print the table only, no progress")
    add_machine_flags(wer.add_argument_group("model and machine"))
    add_flags(wer.add_argument_group("transcription"), TranscribeOptions, WER_FLAGS)
    wer.set_defaults(run=run_wer, parser=wer)


def run_wer(arguments: argparse.Namespace) -> int:
    from choral.bench import peers, wer
    from choral.bench.corpus import read_corpus

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
        systems, notes = [peers.choral_system(model, options)], []
        if arguments.peers:
            found = peers.find_peers(model, options)
            systems += found.systems
            notes += found.notes
        report = wer.measure(model.name, clips, systems, notes, on_clip)
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
    table = format_table(rows, numbers=range(1, len(names) + 2))
    return f"word error rate in percent, {report.model}\n\n{table}\n{notes}"


def progress(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Prints one line on standard error, unless --quiet is set."""
    return (lambda line: None) if arguments.quiet else message


def require_counts(arguments: argparse.Namespace, **minimums: int) -> None:
    for name, minimum in minimums.items():
        value = getattr(arguments, name)
        if value is not None and value < minimum:
            raise UsageError(f"{name} must be a whole number from {minimum} up")


def read_counts(name: str, value: str, maximum: int, example: str) -> tuple[int, ...]:
    """Numbers separated by commas."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= maximum for part in parts):
        raise UsageError(f"{name} is {value!r}; it must be numbers from 1 to {maximum}, for example {example}")
    return tuple(int(part) for part in parts)


def find_clips(folder: Path | None, limit: int | None, is_quiet: bool) -> Sequence[LabelledClip]:
    """The labelled clips of the folder; without one, five sentences that are downloaded."""
    from choral.bench.corpus import LabelledClip, read_corpus

    if folder is not None:
        return read_corpus(folder)[:limit]
    from choral.remote.speech_samples import librivox

    with download_bar("downloading speech samples", is_quiet=is_quiet) as on_download:
        samples = librivox(on_progress=on_download)
    return [LabelledClip(sample.path.name, sample.path, sample.text, sample.language) for sample in samples][:limit]


def find_audio(folder: Path | None, is_quiet: bool) -> list[Path]:
    """All audio files of the folder, with or without transcripts; without a folder, as `find_clips`."""
    if folder is None:
        return [clip.path for clip in find_clips(None, None, is_quiet)]
    if not folder.is_dir():
        raise AudioNotFound(f"there is no folder {folder}")
    return [Path(item.source) for item in expand([str(folder)]).found]


def find_short_clips(folder: Path | None, is_quiet: bool) -> tuple[AudioClip, ...]:
    """The audio of the folder that is at most 30 s long, without transcripts."""
    from choral.bench.clips import short_clips
    from choral.bench.corpus import LabelledClip

    paths = find_audio(folder, is_quiet)
    return short_clips([LabelledClip(path.name, path, "", None) for path in paths], len(paths))


def read_workload(given: Sequence[str]) -> Workload:
    from choral.bench.workload import make_workload

    inputs = expand(given)
    if inputs.failures:
        first = inputs.failures[0]
        raise type(first.error)(str(first)) from first.error
    return make_workload([item.source for item in inputs.found])


def pick_device(settings: EngineSettings) -> str:
    from choral.api import uses_cuda

    if settings.device != "auto":
        return settings.device
    return "cuda" if importlib.util.find_spec("torch") is not None and uses_cuda(settings) else "cpu"


def resolve_model(name: str | None, device: str, is_quiet: bool) -> Path:
    """The files of the model, downloaded first if needed."""
    from choral.model.store import ModelStore, default_model

    name = name or default_model(cuda=device != "cpu")
    with download_bar(f"loading {name}", is_quiet=is_quiet) as on_download:
        return ModelStore().resolve(name, on_progress=on_download)
