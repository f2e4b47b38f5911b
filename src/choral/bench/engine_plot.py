"""The load of an engine as a PNG: throughput, and the engine's own time, by the number of windows."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from choral.bench.engine_load import Load, OwnTime
from choral.errors import MissingDependency


def require_plots() -> Any:
    """The package that draws: better missed before the work than after it."""
    try:
        importlib.import_module("matplotlib").use("Agg")  # files, whatever screen there is
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise MissingDependency("--plot needs matplotlib: pip install 'choral[bench]'") from error


def plot(path: Path, title: str, loads: Sequence[Load], own: Sequence[OwnTime]) -> None:
    pyplot = require_plots()
    figure, (speed, overhead) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    counts = [load.windows for load in loads]
    speed.plot(counts, [load.windows_per_s for load in loads], marker="o")
    speed.set(xlabel="windows queued at once", ylabel="windows a second", xscale="log", ylim=(0, None))
    overhead.plot(counts, [load.own_us_at_full for load in loads], marker="o", label="with the model")
    overhead.plot([one.windows for one in own], [one.step_us for one in own], "s", label="alone, at 64 rows")
    overhead.set(xlabel="windows queued at once", ylabel="engine's own µs a step", xscale="log", ylim=(0, None))
    overhead.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
