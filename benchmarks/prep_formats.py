"""How fast are files of several formats prepared, compared with ffmpeg on one thread, and on two cores?

One process prepares a file at a time, from its path to a readable recording; ffmpeg decodes and resamples
the same file. Both times include everything, for ffmpeg its start. Rounds alternate; medians count. AUDIO are files
(default: synthetic audio as mp3, m4a, flac, opus and wav).
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from choral.audio.recording import Recording
from choral.bench.report import json_line, verdict
from choral.bench.synthetic_audio import AUDIO_FORMATS, write_synthetic
from choral.cli.arguments import Parser
from choral.cli.console import write_stdout
from choral.common.processor import n_usable_cores
from choral.errors import AudioError
from support.script import run_script

SYNTHETIC_S = 600
ROUNDS = 5
MIN_SHARE_OF_FFMPEG = 0.8
MIN_TIMES_ON_TWO = 1.8


@dataclass(frozen=True)
class FileSpeed:
    name: str
    duration_s: float
    choral: float  # seconds of audio per second, on one core
    ffmpeg: float | None  # None: not installed here

    @property
    def share(self) -> float | None:
        return None if self.ffmpeg is None else self.choral / self.ffmpeg


@dataclass(frozen=True)
class FormatsResult:
    files: tuple[FileSpeed, ...]
    times_on_two: float | None  # two processes over one; None: there is one core
    ffmpeg: str | None  # its version

    @property
    def keeps_up(self) -> bool | None:
        shares = [file.share for file in self.files]
        return None if self.ffmpeg is None else all(share is None or share >= MIN_SHARE_OF_FFMPEG for share in shares)

    @property
    def scales(self) -> bool | None:
        return None if self.times_on_two is None else self.times_on_two >= MIN_TIMES_ON_TWO


def make_files(folder: Path, seconds: int = SYNTHETIC_S) -> list[Path]:
    """The same synthetic audio in every format."""
    paths = [folder / f"synthetic.{form.suffix}" for form in AUDIO_FORMATS]
    for path, form in zip(paths, AUDIO_FORMATS, strict=True):
        write_synthetic(path, form, seconds)
    return paths


def measure(paths: Sequence[Path], *, rounds: int = ROUNDS) -> FormatsResult:
    ffmpeg = shutil.which("ffmpeg")
    one, two = (ProcessPoolExecutor(n) for n in (1, 2))
    with one, two:
        durations_s = [_prepare(two, [path] * 2) / 2 for path in paths]  # starts all processes
        durations_s = [_prepare(one, [path]) for path in paths]
        ours: list[list[float]] = [[] for _ in paths]
        theirs: list[list[float]] = [[] for _ in paths]
        ratios: list[float] = []
        for _ in range(rounds):
            for index, path in enumerate(paths):
                ours[index].append(_timed(one, [path]))
                if ffmpeg is not None:
                    theirs[index].append(_ffmpeg_s(ffmpeg, path))
            twice = [path for path in paths for _ in range(2)]
            ratios.append(_timed(one, twice) / _timed(two, twice))
    files = [
        FileSpeed(
            path.name,
            duration_s,
            duration_s / statistics.median(ours[index]),
            duration_s / statistics.median(theirs[index]) if theirs[index] else None,
        )
        for index, (path, duration_s) in enumerate(zip(paths, durations_s, strict=True))
    ]
    n_cores = n_usable_cores()
    return FormatsResult(
        tuple(files), statistics.median(ratios) if n_cores > 1 else None, _version(ffmpeg) if ffmpeg else None
    )


def report(result: FormatsResult) -> str:
    lines = [f"{'audio seconds per second, one core':36} {'choral':>8} {'ffmpeg':>8} {'share':>7}"]
    for file in result.files:
        ffmpeg = f"{file.ffmpeg:>8.0f} {file.share:>7.2f}" if file.ffmpeg is not None else f"{'–':>8} {'–':>7}"
        lines.append(f"{file.name:36} {file.choral:>8.0f} {ffmpeg}")
    if result.times_on_two is not None:
        lines.append(f"\ntwo processes: {result.times_on_two:.2f} times one")
    note = "" if result.ffmpeg else "note: ffmpeg is not installed here, so there is no comparison\n"
    bars = verdict(f"at least {MIN_SHARE_OF_FFMPEG} of ffmpeg's speed", holds=result.keeps_up)
    bars += verdict(f"two processes at least {MIN_TIMES_ON_TWO} times one", holds=result.scales)
    return "\n".join(lines) + f"\n{note}{bars}"


def _timed(pool: ProcessPoolExecutor, paths: Sequence[Path]) -> float:
    start_s = time.perf_counter()
    _prepare(pool, paths)
    return time.perf_counter() - start_s


def _prepare(pool: ProcessPoolExecutor, paths: Sequence[Path]) -> float:
    """Prepare all, and return their duration in seconds."""
    return sum(pool.map(_duration_s, paths))


def _duration_s(path: Path) -> float:
    with Recording.open(path) as recording:
        return recording.duration


def _ffmpeg_s(program: str, path: Path) -> float:
    start_s = time.perf_counter()
    command = [program, "-v", "error", "-nostdin", "-threads", "1", "-i", str(path)]
    command += ["-vn", "-ac", "1", "-ar", "16000", "-f", "s16le", "-"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise AudioError(f"ffmpeg cannot decode {path}: {done.stderr.decode(errors='replace').strip()}")
    return time.perf_counter() - start_s


def _version(program: str) -> str:
    output = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stdout
    return output.partition(" Copyright")[0].removeprefix("ffmpeg version ")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("audio", nargs="*", type=Path, metavar="AUDIO", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments.audio or make_files(Path(folder)))
    fields = dataclasses.asdict(result) | {"keeps_up": result.keeps_up, "scales": result.scales}
    write_stdout(f"{report(result)}\n{json_line('prep files', fields)}\n")
    return 0


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run, usage="[AUDIO …]", has_machine_flags=False)
