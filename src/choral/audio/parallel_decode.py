"""One long recording decoded in sections, on several cores if there are cores that nobody else uses.

Decoding begins sequentially, so that the first samples come at once, and while it is measured how many cores are idle.
Then sections are decoded (`sections.py`), on that many threads, and their samples are returned in order. One thread
does it in less time, too, because Python does not see every packet. The sequential decoder stays where it is: if a
section is not as expected, it goes on from there, so that what it skips and reports counts.
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
from choral.common.spare_cores import MIN_LENGTH_S, n_threads_for


def decoded_pieces(decoder: Decoder, source: AudioSource) -> Pieces:
    """`Decoder.pieces`, with the same samples, warnings and errors."""
    cursor = PieceCursor(decoder.pieces())
    if (decoder.total_s or 0) >= MIN_LENGTH_S:
        try:
            yield from _in_sections(decoder, source, cursor)
        except SectionMismatch:
            pass
        else:
            decoder.add_samples(cursor.n_returned - cursor.n_decoded)
            return
    yield from cursor.read()


def _in_sections(decoder: Decoder, source: AudioSource, cursor: PieceCursor) -> Pieces:
    """Raises `SectionMismatch` where the sequential decoder has to go on."""
    while (n_threads := n_threads_for(decoder.total_s)) is None:
        if (piece := next(cursor.read(), None)) is None:
            return
        yield piece
    sections = plan_sections(source, decoder.media, cursor.n_returned)
    first = next(sections)
    yield from cursor.read(first.start)
    if cursor.n_returned < first.start:
        return
    cancel_event = threading.Event()
    decoded = _decode_all(chain([first], sections), cancel_event, n_threads)
    try:
        for pieces in decoded:
            for piece in pieces:
                cursor.n_returned += len(piece)
                yield piece
    finally:
        cancel_event.set()
        decoded.close()


def _decode_all(
    sections: Iterator[DecodeSection], cancel_event: threading.Event, n_threads: int
) -> Generator[list[Piece], None, None]:
    decode = partial(decode_section, is_cancelled=cancel_event.is_set)
    if n_threads == 1:
        return (decode(section) for section in sections)
    return ordered_map(decode, sections, n_threads=n_threads, max_ahead=2 * n_threads, name="choral-section")


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
