"""A wav file of any length, made while it is read."""

from __future__ import annotations

import io

HEADER_BYTES = 44


class LongWav(io.RawIOBase):
    """Repeats the samples of a short wav file."""

    def __init__(self, clip: bytes, hours: float) -> None:
        self.n_bytes = HEADER_BYTES + int(hours * 3600) * 32_000
        sizes = [(self.n_bytes - 8).to_bytes(4, "little"), (self.n_bytes - HEADER_BYTES).to_bytes(4, "little")]
        self.header = clip[:4] + sizes[0] + clip[8:40] + sizes[1]
        self.period = len(clip) - HEADER_BYTES
        self.body = clip[HEADER_BYTES:] * 2
        self.at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.n_bytes)[whence]
        return self.at

    def read(self, size: int = -1) -> bytes:
        size = max(min(size, self.n_bytes - self.at), 0)
        if self.at < HEADER_BYTES:
            data = self.header[self.at : self.at + size]
        else:
            start = (self.at - HEADER_BYTES) % self.period
            data = self.body[start : start + min(size, self.period)]
        self.at += len(data)
        return data
