"""Throughput against the number of files or callers, drawn from what benchmarks printed.

RESULT is a file with the output of `choral bench files` or `choral bench serve`, named in the picture by its file name
or by LABEL. Results of the two kinds get a chart each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.bench.engine_load import require_matplotlib
from choral.cli.arguments import Parser, describe
from choral.cli.console import message
from choral.errors import UsageError
from choral.storage import storage_errors
from support.script import run_script

Points = Sequence[tuple[float, float]]
AXES = {"files": ("files at once", "times real time"), "serve": ("callers", "requests per second")}


@dataclass(frozen=True)
class ThroughputLine:
    benchmark: str  # a key of AXES
    label: str
    points: Points


def read_result(result: str) -> Iterator[ThroughputLine]:
    label, separator, name = result.partition("=")
    path = Path(name if separator else label)
    try:
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
        found = [json.loads(text) for text in texts]
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    lines = [(each["benchmark"], points_of(each)) for each in found if each.get("benchmark") in AXES]
    if not lines:
        raise UsageError(f"{path} has no line of JSON from `choral bench files` or `choral bench serve`")
    for benchmark, points in lines:
        yield ThroughputLine(benchmark, label if separator else path.stem, points)


def points_of(report: dict[str, Any]) -> Points:
    if report["benchmark"] == "serve":
        return [(level["callers"], level["server"]["requests_per_s"]) for level in report["levels"]]
    return [(result["n_files"], result["audio_s"] / result["wall_s"]) for result in report["results"]]


def draw(path: Path, lines: Sequence[ThroughputLine]) -> None:
    pyplot = require_matplotlib()
    benchmarks = [benchmark for benchmark in AXES if any(line.benchmark == benchmark for line in lines)]
    figure, charts = pyplot.subplots(
        1, len(benchmarks), figsize=(5.5 * len(benchmarks), 4), layout="constrained", squeeze=False
    )
    for benchmark, chart in zip(benchmarks, charts[0], strict=True):
        for line in (line for line in lines if line.benchmark == benchmark):
            chart.plot(*zip(*line.points, strict=True), marker="o", label=line.label)
        x_label, y_label = AXES[benchmark]
        chart.set(xlabel=x_label, ylabel=y_label, ylim=(0, None))
        chart.set_xscale("log", base=2)
        chart.xaxis.set_major_formatter("{x:g}")
        chart.legend()
    with storage_errors(path):
        figure.savefig(path, dpi=120)
    pyplot.close(figure)


def add_arguments(parser: Parser) -> None:
    parser.add_argument("results", nargs="+", metavar="[LABEL=]RESULT", help=argparse.SUPPRESS)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("throughput.svg"),
        metavar="FILE",
        help=describe(".svg or .png", "throughput.svg"),
    )


def run(arguments: argparse.Namespace) -> int:
    require_matplotlib()
    draw(arguments.output, [line for result in arguments.results for line in read_result(result)])
    if not arguments.quiet:
        message(f"{arguments.output} is drawn")
    return 0


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run, usage="[LABEL=]RESULT… [options]", has_machine_flags=False)
