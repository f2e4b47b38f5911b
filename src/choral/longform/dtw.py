"""Dynamic time warping: the cheapest way through a matrix of tokens and frames, both only ever moving forward.

Cells on one anti-diagonal do not depend on each other, so each diagonal is one array operation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
DIAGONAL, UP, LEFT = 0, 1, 2


def warp(cost: Floats) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Row and column of every step on the cheapest path from the first cell to the last."""
    return trace_back(steps(cost))


def steps(cost: Floats) -> npt.NDArray[np.int8]:
    """From which neighbour each cell is reached most cheaply, [rows + 1, columns + 1]; row and column 0 are outside."""
    n_rows, n_columns = cost.shape
    # Diagonal d holds the cells (i, d - i); `total` keeps the last two diagonals, indexed by row.
    before_last = np.full(n_rows + 1, np.inf, dtype=np.float32)
    last = before_last.copy()
    before_last[0] = 0.0  # the corner, from which the first cell is reached
    step = np.full((n_rows + 1, n_columns + 1), LEFT, dtype=np.int8)
    for d in range(2, n_rows + n_columns + 1):
        low, high = max(1, d - n_columns), min(n_rows, d - 1)
        rows = np.arange(low, high + 1)
        corner, up, left = before_last[rows - 1], last[rows - 1], last[rows]
        by_corner = (corner < up) & (corner < left)
        by_up = (up < corner) & (up < left) & ~by_corner
        step[rows, d - rows] = np.where(by_corner, DIAGONAL, np.where(by_up, UP, LEFT))
        best = np.where(by_corner, corner, np.where(by_up, up, left))
        current = np.full(n_rows + 1, np.inf, dtype=np.float32)
        current[rows] = best + cost[rows - 1, d - rows - 1]
        before_last, last = last, current
    return step


def trace_back(step: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    i, j = step.shape[0] - 1, step.shape[1] - 1
    path = []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        move = LEFT if i == 0 else UP if j == 0 else step[i, j]
        if move != LEFT:
            i -= 1
        if move != UP:
            j -= 1
    rows, columns = np.array(path[::-1], dtype=np.intp).reshape(-1, 2).T
    return rows, columns
