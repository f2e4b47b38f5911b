"""One long recording decoded on several cores, if there are cores that nobody else uses.

Decoding begins sequentially, so that the first samples come at once, and while it is measured how many cores are idle.
Then sections are decoded on threads (`sections.py`), and their samples are returned in order. The sequential decoder
stays where it is: if a section is not as expected, it goes on from there, so that what it skips and reports counts.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from functools import partial
from itertools import chain

import numpy as np

from choral.audio.decode import Decoder
from choral.audio.resample import Piece, Pieces
from choral.audio.section_plan import plan_sections
from choral.audio.sections import DecodeSection, SectionMismatch, decode_section
from choral.audio.source import AudioSource
from choral.common.ordered_map import ordered_map
from choral.common.spare_cores import n_threads_for


def decoded_pieces(decoder: Decoder, source: AudioSource) -> Pieces:
    """`Decoder.pieces`, with the same samples, warnings and errors."""
    cursor = PieceCursor(decoder.pieces())
    n_threads = yield from _measuring(decoder, cursor)
    sections = plan_sections(source, decoder.media, cursor.n_returned) if n_threads > 1 else None
    if sections is not None:
        try:
            yield from _in_sections(cursor, sections, n_threads)
        except SectionMismatch:
            pass
        else:
            decoder.add_samples(cursor.n_returned - cursor.n_decoded)
            return
    yield from cursor.read()


def _measuring(decoder: Decoder, cursor: PieceCursor) -> Generator[Piece, None, int]:
    """Decodes sequentially until it is known how many threads may decode, and returns their number."""
    while (n_threads := n_threads_for(decoder.total_s)) is None:
        piece = next(cursor.read(), None)
        if piece is None:
            return 1
        yield piece
    return n_threads


def _in_sections(cursor: PieceCursor, sections: Iterator[DecodeSection], n_threads: int) -> Pieces:
    first = next(sections)
    yield from cursor.read(first.start)
    if cursor.n_returned < first.start:
        return
    cancel_event = threading.Event()
    decoded = ordered_map(
        partial(decode_section, is_cancelled=cancel_event.is_set),
        chain([first], sections),
        n_threads=n_threads,
        max_ahead=2 * n_threads,
        name="choral-section",
    )
    try:
        for pieces in decoded:
            for piece in pieces:
                cursor.n_returned += len(piece)
                yield piece
    finally:
        cancel_event.set()
        decoded.close()


class PieceCursor:
    """The samples of a sequential decoder from `n_returned` on, which others may move."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._rest: Piece = np.zeros(0, np.int16)  # of the last piece
        self.n_decoded = 0
        self.n_returned = 0

    def read(self, stop: int | None = None) -> Pieces:
        """Up to, not including, sample `stop`, or to the end."""
        while stop is None or self.n_returned < stop:
            if not len(self._rest):
                piece = next(self._pieces, None)
                if piece is None:
                    return
                self._rest = piece
                self.n_decoded += len(piece)
            rest_start = self.n_decoded - len(self._rest)
            wanted = self._rest[max(0, self.n_returned - rest_start) :]
            if stop is not None:
                wanted = wanted[: stop - self.n_returned]
            self._rest = self._rest[max(0, self.n_returned - rest_start) + len(wanted) :]
            self.n_returned += len(wanted)
            if len(wanted):
                yield wanted
