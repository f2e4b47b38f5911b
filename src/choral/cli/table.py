"""Rows as lines of text with aligned columns: for screens and for `grep` alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """Columns two spaces apart; those in `numbers` are aligned at the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "".join(_line(row, widths, numbers) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int], numbers: Collection[int]) -> str:
    cells = [
        cell.rjust(width) if index in numbers else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip() + "\n"
