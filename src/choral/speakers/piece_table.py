"""All pieces of a recording, in flat arrays: ten hours have 170,000, and as objects they would take five times as much.

The arrays grow in place, and are read without a copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from choral.diarization import EMBEDDING_SIZE
from choral.speakers.clustering import Clusters, Int
from choral.speakers.embedding import SpeechPiece
from choral.speakers.networks import Float32
from choral.speakers.reconstruction import PieceSpeaker
from choral.speakers.segmentation import N_LOCAL


class PieceTable:
    """Pieces are added window by window, those of a local speaker together."""

    def __init__(self) -> None:
        self._embeddings = bytearray()  # float16, so 512 bytes for each piece
        self._windows, self._locals = array("i"), array("b")
        self._firsts, self._stops = array("h"), array("h")
        self._clean_s = array("f")

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, pieces: Iterable[SpeechPiece]) -> None:
        for piece in pieces:
            self._embeddings += piece.embedding.tobytes()
            self._windows.append(piece.window)
            self._locals.append(piece.local)
            self._firsts.append(piece.first)
            self._stops.append(piece.stop)
            self._clean_s.append(piece.clean_s)

    @property
    def embeddings(self) -> npt.NDArray[np.float16]:
        """[pieces, 256]"""
        return np.frombuffer(self._embeddings, np.float16).reshape(-1, EMBEDDING_SIZE)

    @property
    def clean_s(self) -> Float32:
        return np.frombuffer(self._clean_s, np.float32)

    @property
    def tracks(self) -> Int:
        """A number for the local speaker of each piece; ascending."""
        windows, locals_ = np.frombuffer(self._windows, np.int32), np.frombuffer(self._locals, np.int8)
        return windows.astype(np.int64) * N_LOCAL + locals_

    def speakers_of(self, window: int, clusters: Clusters) -> list[PieceSpeaker]:
        """The pieces of a window with who speaks in them."""
        windows = np.frombuffer(self._windows, np.int32)
        return [
            PieceSpeaker(
                self._locals[row],
                self._firsts[row],
                self._stops[row],
                int(clusters.labels[row]),
                int(clusters.seconds[row]),
                float(clusters.margins[row]),
            )
            for row in range(*np.searchsorted(windows, [window, window + 1]).tolist())
        ]
