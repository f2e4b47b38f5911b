"""A chart of horizontal bars as an image file; needs matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from choral.errors import MissingDependency, UsageError
from choral.storage import storage_errors

WIDTH_INCHES, ROW_INCHES, EDGE_INCHES = 9.0, 0.45, 1.3
COLOUR, OWN_COLOUR = "#9aa5b1", "#2f6fde"


def require_plot(path: Path) -> None:
    """Better known before the work than after it."""
    if path.suffix.lower() != ".png":
        raise UsageError(f"the plot is a PNG image: give it a name such as {path.stem or 'plot'}.png")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for the plot: make it first")
    _matplotlib()


def save_bars(path: Path, title: str, unit: str, rows: Sequence[tuple[str, float]]) -> None:
    """The first row on top; Choral's own rows stand out."""
    figure_module, canvas_module = _matplotlib()
    figure = figure_module.Figure(figsize=(WIDTH_INCHES, EDGE_INCHES + ROW_INCHES * len(rows)), layout="constrained")
    canvas_module.FigureCanvasAgg(figure)
    axes = figure.subplots()
    names, values = [name for name, _ in rows], [value for _, value in rows]
    colours = [OWN_COLOUR if name.lower().startswith("choral") else COLOUR for name in names]
    drawn = axes.barh(range(len(rows)), values, color=colours)
    axes.bar_label(drawn, fmt="%.2f", padding=4)
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
