"""Token times from cross-attention, by dynamic time warping (DTW): the cheapest monotonic path over tokens and frames.

Cells on one anti-diagonal of the cost matrix do not depend on each other, so each diagonal is one array operation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from choral.engine.window import Aligned

Floats = npt.NDArray[np.floating]
DIAGONAL, UP, LEFT = 0, 1, 2
MEDIAN_WIDTH = 7


def token_start_frames(aligned: Aligned, n_frames: int) -> npt.NDArray[np.intp]:
    """The frame at which each text token starts, and that of the end of text."""
    rows, columns = dtw_path(-attention(aligned, n_frames))
    is_new_token = np.diff(rows, prepend=rows[0] - 1) > 0
    return columns[is_new_token]


def attention(aligned: Aligned, n_frames: int) -> npt.NDArray[np.float32]:
    """[tokens, frames]: the heads' attention, each frame normalised over the tokens, median-filtered, averaged."""
    scores = aligned.scores[:, :, :n_frames]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    deviation = weights.std(axis=-2, keepdims=True)
    weights = (weights - weights.mean(axis=-2, keepdims=True)) / np.maximum(deviation, np.finfo(np.float32).tiny)
    smoothed: npt.NDArray[np.float32] = median_filter(weights).mean(axis=0)
    return smoothed[aligned.n_start_tokens : -1]


def median_filter(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    half = MEDIAN_WIDTH // 2
    if x.shape[-1] <= half:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_WIDTH, axis=-1)
    return np.partition(windows, half, axis=-1)[..., half]


def dtw_path(cost: Floats) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Row and column of every step on the cheapest path from the first cell to the last."""
    return backtrace(best_moves(cost))


def best_moves(cost: Floats) -> npt.NDArray[np.int8]:
    """[rows + 1, columns + 1]: the cheapest move into each cell; row and column 0 are the border."""
    n_rows, n_columns = cost.shape
    # Diagonal d holds the cells (i, d - i); totals of the last two diagonals are kept, indexed by row.
    before_last = np.full(n_rows + 1, np.inf, dtype=np.float32)
    last = before_last.copy()
    before_last[0] = 0.0  # the corner, from which the first cell is reached
    moves = np.full((n_rows + 1, n_columns + 1), LEFT, dtype=np.int8)
    for d in range(2, n_rows + n_columns + 1):
        low, high = max(1, d - n_columns), min(n_rows, d - 1)
        rows = np.arange(low, high + 1)
        corner, up, left = before_last[rows - 1], last[rows - 1], last[rows]
        by_corner = (corner < up) & (corner < left)
        by_up = (up < corner) & (up < left) & ~by_corner
        moves[rows, d - rows] = np.where(by_corner, DIAGONAL, np.where(by_up, UP, LEFT))
        best = np.where(by_corner, corner, np.where(by_up, up, left))
        current = np.full(n_rows + 1, np.inf, dtype=np.float32)
        current[rows] = best + cost[rows - 1, d - rows - 1]
        before_last, last = last, current
    return moves


def backtrace(moves: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    i, j = moves.shape[0] - 1, moves.shape[1] - 1
    path = []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        move = LEFT if i == 0 else UP if j == 0 else moves[i, j]
        if move != LEFT:
            i -= 1
        if move != UP:
            j -= 1
    rows, columns = np.array(path[::-1], dtype=np.intp).reshape(-1, 2).T
    return rows, columns
