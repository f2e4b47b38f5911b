"""The table of pieces gives back what was added, in the memory of its numbers."""

from __future__ import annotations

import tracemalloc

import numpy as np

from choral.speakers.clustering import Clusters
from choral.speakers.embedding import SpeechPiece
from choral.speakers.piece_table import PieceTable
from choral.speakers.reconstruction import PieceSpeaker


def piece(window: int, local: int, first: int, stop: int) -> SpeechPiece:
    embedding = np.eye(1, 256, window).astype(np.float16)[0]
    return SpeechPiece(window, local, first, stop, clean_s=0.5 * window, embedding=embedding)


def test_pieces_come_back() -> None:
    table = PieceTable()
    table.add([piece(0, 2, 0, 589), piece(2, 0, 0, 100), piece(2, 1, 100, 589)])
    table.add([])
    assert len(table) == 3
    np.testing.assert_array_equal(table.embeddings, np.eye(256)[[0, 2, 2]])
    assert table.clean_s.tolist() == [0, 1, 1]
    assert table.tracks.tolist() == [2, 6, 7]
    labels, seconds, margins = np.array([1, 0, 2]), np.array([0, 1, 0]), np.array([0.5, 0.25, 0.75], np.float32)
    clusters = Clusters(np.eye(3, 256, dtype=np.float32), labels, seconds, margins)
    assert table.speakers_of(0, clusters) == [PieceSpeaker(2, 0, 589, 1, 0, 0.5)]
    assert table.speakers_of(1, clusters) == []
    assert table.speakers_of(2, clusters) == [
        PieceSpeaker(0, 0, 100, 0, 1, 0.25),
        PieceSpeaker(1, 100, 589, 2, 0, 0.75),
    ]


def test_a_piece_takes_little_more_than_its_embedding() -> None:
    table = PieceTable()
    tracemalloc.start()
    for window in range(2_000):
        table.add([piece(window % 256, local, 0, 589) for local in range(3)])
    n_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert n_bytes / len(table) < 1.2 * (512 + 13)
