"""How do ways to serve many callers with one model compare, from one request at a time to Choral?

The strategies are in `support/serving_strategies.py`. All get the same files from the same callers with the same
weights, precision and threads, greedy; each runs in its own process, and they take turns. FOLDER has clips of speech of
at most 30 s; without one, five sentences are downloaded.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from choral.bench.clips import AudioClip, short_clips
from choral.bench.labelled_clips import LabelledClip
from choral.bench.peers import PeerConfig
from choral.bench.report import bars, json_line
from choral.bench.round_robin import PeerResult, RoundRobin
from choral.cli.arguments import Parser, describe
from choral.cli.bench import add_folder, find_audio, pick_device, progress, require_counts, resolve_model
from choral.cli.console import format_table, write_stdout
from choral.cli.shared_flags import engine_settings
from choral.common.processor import default_threads
from choral.errors import MissingDependency, UsageError
from choral.model.languages import to_code
from choral.storage import storage_errors
from support.script import run_script

MICRO_BATCH, STATIC_BATCH = 6, 16
CHILD = "support.serving_strategies"
WIDTH_INCHES, ROW_INCHES, EDGE_INCHES = 9.0, 0.45, 1.3
PEER_COLOUR, CHORAL_COLOUR = "#9aa5b1", "#2f6fde"


@dataclass(frozen=True)
class StrategySettings:
    model: Path
    device: str
    compute_type: str
    threads: int
    engines: tuple[str, ...]
    n_callers: int

    @property
    def title(self) -> str:
        return f"{self.model.name} in {self.compute_type} on {self.device}, {self.threads} threads"


@dataclass(frozen=True)
class StageShares:
    """Percent of the time in the three stages."""

    mel: float
    encoder: float
    decoder: float


@dataclass(frozen=True)
class StrategyRow:
    name: str
    requests_per_s: float
    p50_s: float
    p95_s: float
    idle_percent: float | None
    peak_bytes: int
    stages: StageShares | None  # None: they overlap and cannot be separated
    rounds_s: tuple[float, ...]


def strategies(settings: StrategySettings) -> list[PeerConfig]:
    base = PeerConfig(
        family="",
        library="",
        model=str(settings.model),
        device=settings.device,
        compute_type=settings.compute_type,
        threads=settings.threads,
        n_callers=settings.n_callers,
    )
    n_copies = max(2, settings.threads)
    copies = f"{n_copies} copies of the model, {max(1, settings.threads // n_copies)} thread each"
    micro_batch = f"micro-batches of {MICRO_BATCH}, then one by one"
    configs = [
        replace(base, strategy="lock", family="one request after another"),
        replace(base, strategy="threads", family=f"{settings.n_callers} threads, one model"),
        replace(base, strategy="copies", family=copies, n_workers=n_copies),
        replace(base, strategy="micro-batch", family=micro_batch, batch_size=MICRO_BATCH),
        replace(base, strategy="static", family=f"static batches of {STATIC_BATCH}", batch_size=STATIC_BATCH),
    ]
    kinds = {"torch": "continuous", "ctranslate2": "shared batches"}
    return configs + [
        replace(base, engine=engine, family=f"Choral, {kinds[engine]} ({engine})") for engine in settings.engines
    ]


def measure(
    settings: StrategySettings, clips: Sequence[AudioClip], round_robin: RoundRobin, n_rounds: int
) -> list[StrategyRow]:
    return [strategy_row(result) for result in round_robin.run(strategies(settings), clips, n_rounds)]


def strategy_row(result: PeerResult) -> StrategyRow:
    """Medians of the rounds; percentiles over the latencies of all rounds."""
    latencies_s = [latency_s for one in result.rounds for latency_s in one.latencies_s]
    p50_s, p95_s = np.percentile(latencies_s, [50, 95])
    return StrategyRow(
        name=result.config.family,
        requests_per_s=len(result.rounds[0].texts) / result.wall_s,
        p50_s=float(p50_s),
        p95_s=float(p95_s),
        idle_percent=100 * statistics.median(one.internals["idle_share"] for one in result.rounds),
        peak_bytes=result.peak_bytes,
        stages=stage_shares(one.internals for one in result.rounds),
        rounds_s=tuple(one.wall_s for one in result.rounds),
    )


def stage_shares(internals: Iterable[Mapping[str, float]]) -> StageShares | None:
    names = ("mel_s", "encoder_s", "decoder_s")
    totals_s = np.sum([[one.get(name, 0.0) for name in names] for one in internals], axis=0)
    return StageShares(*(100 * totals_s / totals_s.sum()).tolist()) if totals_s.sum() else None


def strategy_table(rows: Sequence[StrategyRow]) -> str:
    head = ["strategy", "requests/s", "p50 s", "p95 s", "idle %", "peak MB", "mel %", "encoder %", "decoder %"]
    cells = [head]
    for row in rows:
        stages = ["", "", ""] if row.stages is None else [f"{share:.1f}" for share in vars(row.stages).values()]
        idle = "" if row.idle_percent is None else f"{row.idle_percent:.1f}"
        times = [f"{row.requests_per_s:.2f}", f"{row.p50_s:.2f}", f"{row.p95_s:.2f}"]
        cells.append([row.name, *times, idle, f"{row.peak_bytes / 1e6:.0f}", *stages])
    speeds = bars([(row.name, row.requests_per_s, f"{row.requests_per_s:.2f} requests/s") for row in rows])
    return f"{format_table(cells, numbers=range(1, len(head)))}\n{speeds}"


def require_plot(path: Path) -> None:
    """Fail before the measurement if the plot cannot be written."""
    if path.suffix.lower() != ".png":
        raise UsageError(f"the plot is a PNG image: give it a name such as {path.stem or 'plot'}.png")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for the plot: make it first")
    _matplotlib()


def plot_bars(path: Path, title: str, unit: str, rows: Sequence[tuple[str, float]]) -> None:
    """Horizontal bars, the first row on top; Choral's rows have their own colour."""
    figure_module, canvas_module = _matplotlib()
    figure = figure_module.Figure(figsize=(WIDTH_INCHES, EDGE_INCHES + ROW_INCHES * len(rows)), layout="constrained")
    canvas_module.FigureCanvasAgg(figure)
    axes = figure.subplots()
    names, values = [name for name, _ in rows], [value for _, value in rows]
    colours = [CHORAL_COLOUR if name.startswith("Choral") else PEER_COLOUR for name in names]
    axes.bar_label(axes.barh(range(len(rows)), values, color=colours), fmt="%.2f", padding=4)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    figure.suptitle(title)
    axes.spines[["top", "right"]].set_visible(False)
    with storage_errors(path):
        figure.savefig(path, dpi=150)


def _matplotlib() -> tuple[Any, Any]:
    try:
        return importlib.import_module("matplotlib.figure"), importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise MissingDependency("a plot needs matplotlib: pip install 'choral[bench]'") from error


def add_arguments(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument("--requests", type=int, default=64, metavar="N", help=describe("requests in a round", 64))
    parser.add_argument("--callers", type=int, default=16, metavar="N", help=describe("callers at once", 16))
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help=describe("rounds; medians count", 3))
    parser.add_argument("--language", default="en", metavar="CODE", help=describe("spoken in the clips", "en"))
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a chart as a PNG image (needs matplotlib)")


def run(arguments: argparse.Namespace) -> int:
    require_counts(arguments, requests=1, callers=1, rounds=1)
    if arguments.plot is not None:
        require_plot(arguments.plot)
    language = to_code(arguments.language)
    paths = find_audio(arguments.folder, arguments.quiet)
    clips = short_clips([LabelledClip(path.name, path, "", language) for path in paths], arguments.requests)
    settings = make_settings(arguments)
    with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder:
        round_robin = RoundRobin(Path(folder), progress(arguments), CHILD)
        rows = measure(settings, clips, round_robin, arguments.rounds)
    title = f"{len(clips)} requests from {settings.n_callers} callers, {settings.title}"
    notes = "".join(f"note: {note}\n" for note in round_robin.notes)
    write_stdout(f"{title}\n\n{strategy_table(rows)}{notes}\n")
    if arguments.plot is not None:
        plot_bars(arguments.plot, title, "requests per second", [(row.name, row.requests_per_s) for row in rows])
    fields = {"settings": settings, "requests": len(clips), "audio_s": sum(clip.duration_s for clip in clips)}
    write_stdout(json_line("strategies", {**fields, "rows": rows, "notes": round_robin.notes}) + "\n")
    return 0


def make_settings(arguments: argparse.Namespace) -> StrategySettings:
    settings = engine_settings(arguments)
    device = pick_device(settings)
    default_type = "float32" if device == "cpu" else "float16"
    return StrategySettings(
        model=resolve_model(arguments.model, device, arguments.quiet),
        device=device,
        compute_type=default_type if settings.compute_type == "auto" else settings.compute_type,
        threads=settings.threads or default_threads(),
        engines=("torch", "ctranslate2") if settings.engine == "auto" else (settings.engine,),
        n_callers=arguments.callers,
    )


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run)
