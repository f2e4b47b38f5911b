"""Chained Ogg: several recordings one after another in a file, as web radio writes them.

ffmpeg reads on into the next one only while rate and channels stay the same. `links` gives each as a source of
its own, so that they may differ; any other file is its own only link.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from typing import IO, cast

from choral.audio.source import Source

HEADER_BYTES = 27  # of a page, before its table of segments
MAX_PAGES = 2_000_000  # more are not looked at: a year of music has fewer
_FIRST_PAGE_FLAG = 0x02  # set on the first page of each stream, and these come before all other pages of a link


class FilePart(io.RawIOBase):
    """The bytes of `file` from `start` up to `stop`, as a file. It shares the position of `file`."""

    def __init__(self, file: IO[bytes], start: int, stop: int) -> None:
        self._file = file
        self._start = start
        self._size = stop - start

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self.tell(), 0)
        return self._file.read(left if size < 0 else min(size, left))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        target = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        if target < 0:
            raise ValueError(f"cannot seek to {target}")
        return self._file.seek(self._start + target) - self._start

    def tell(self) -> int:
        return self._file.tell() - self._start

    def seekable(self) -> bool:
        return True


def links(source: Source) -> list[Source]:
    starts = list(_link_starts(source.file))
    size = source.file.seek(0, io.SEEK_END)
    source.file.seek(0)
    if len(starts) < 2:
        return [source]
    stops = [*starts[1:], size]
    parts = [FilePart(source.file, start, stop) for start, stop in zip([0, *starts[1:]], stops, strict=True)]
    return [dataclasses.replace(source, file=cast(IO[bytes], part), is_ours=False) for part in parts]


def _link_starts(file: IO[bytes]) -> Iterator[int]:
    """Where a page starts a stream and the page before it did not."""
    position, was_first = 0, False
    for _ in range(MAX_PAGES):
        file.seek(position)
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or not header.startswith(b"OggS"):
            return
        is_first = bool(header[5] & _FIRST_PAGE_FLAG)
        if is_first and not was_first:
            yield position
        was_first = is_first
        position += HEADER_BYTES + header[26] + sum(file.read(header[26]))
