"""`choral bench`: its subcommands, and the flags, checks and speech samples shared by them and benchmarks/."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from choral.cli.arguments import Parser, add_command_modules
from choral.cli.console import message
from choral.cli.inputs import expand
from choral.cli.progress import download_bar
from choral.config import EngineSettings
from choral.errors import AudioNotFound, UsageError

if TYPE_CHECKING:
    from choral.bench.clips import AudioClip
    from choral.bench.labelled_clips import LabelledClip
    from choral.bench.workload import Workload

USAGE = "choral bench COMMAND …"
DESCRIPTION = "Measure speed and accuracy on this machine. The last line of each benchmark is JSON."


COMMANDS = {  # each in the module bench_NAME
    "wer": "word error rate under several conditions, and invented words",
    "speakers": "diarization error rate: who spoke when",
    "peers": "speed compared with other libraries, with the same weights",
    "engine": "throughput, memory and overhead of the engine under load",
    "files": "throughput from files on disk to text",
    "gpu": "speed on a GPU, checked against the CPU and the hardware's limits",
    "serve": "the server compared with the engine without HTTP, and a soak test",
}

SHAPES = ("nano", "tiny", "base", "small", "large-v3-turbo", "large-v3")


def add_arguments(parser: Parser) -> None:
    add_command_modules(parser, COMMANDS, "choral.cli.bench_")


def add_folder(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help=argparse.SUPPRESS)


def add_quiet(parser: Parser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print the result only, no progress")


def add_random_weights(parser: Parser) -> None:
    parser.add_argument(
        "--random-weights",
        choices=SHAPES,
        metavar="SHAPE",
        help=f"random weights instead of a model, in the shape of {', '.join(SHAPES)}",
    )


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
    from choral.bench.labelled_clips import LabelledClip, read_corpus

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
    from choral.bench.labelled_clips import LabelledClip

    paths = find_audio(folder, is_quiet)
    return short_clips([LabelledClip(path.name, path, "", None) for path in paths], len(paths))


def read_workload(sources: Sequence[str]) -> Workload:
    from choral.bench.workload import make_workload

    inputs = expand(sources)
    if inputs.failures:
        first = inputs.failures[0]
        raise type(first.error)(str(first)) from first.error
    return make_workload([item.source for item in inputs.found])


def pick_device(settings: EngineSettings) -> str:
    from choral.engine.engine_plan import plan_engine

    if settings.device != "auto":
        return settings.device
    return "cuda" if plan_engine(settings).is_torch_on_gpu else "cpu"


def resolve_model(name: str | None, device: str, is_quiet: bool) -> Path:
    """The files of the model, downloaded first if needed."""
    from choral.model.store import ModelStore, default_model

    name = name or default_model(cuda=device != "cpu")
    with download_bar(f"loading {name}", is_quiet=is_quiet) as on_download:
        return ModelStore().resolve(name, on_progress=on_download)
