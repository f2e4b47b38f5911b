"""The only window through which ffmpeg sees the outside: one file, read and seek.

Exceptions raised inside ffmpeg's callbacks would be kept and surface in some later, unrelated call, so this
object keeps them itself and looks like the end of the file from then on; `raise_pending` brings them out.
It also stops a file that keeps ffmpeg busy without giving any sound.
"""

from __future__ import annotations

import time

from choral.audio.source import Source, unreadable
from choral.errors import NotAudio

BUSY_LIMIT_S = 60.0
_SEEK_FAILED = -1


class Reader:
    def __init__(self, source: Source) -> None:
        self.name = f"audio{source.suffix}"  # ffmpeg knows some formats by the suffix alone
        self._source = source
        self._file = source.file
        self._pending: BaseException | None = None
        self._busy_s = 0.0  # time that ffmpeg worked since the last sound
        self._returned_s = time.monotonic()

    def read(self, size: int) -> bytes:
        self._count_busy_time()
        if self._pending is not None:
            return b""
        try:
            return (self._file.read(size) or b"")[:size]
        except (OSError, ValueError) as error:
            self._pending = unreadable(self._source.name, error)
            return b""
        except KeyboardInterrupt as interrupt:
            self._pending = interrupt
            return b""
        finally:
            self._returned_s = time.monotonic()

    def seek(self, offset: int, whence: int = 0) -> int:
        if self._pending is not None or whence not in (0, 1, 2):
            return _SEEK_FAILED
        try:
            return self._file.seek(offset, whence)
        except (OSError, ValueError, OverflowError):
            return _SEEK_FAILED

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def note_sound(self) -> None:
        self._busy_s = 0.0
        self._returned_s = time.monotonic()

    def raise_pending(self) -> None:
        if self._pending is not None:
            raise self._pending

    def _count_busy_time(self) -> None:
        self._busy_s += time.monotonic() - self._returned_s
        if self._busy_s > BUSY_LIMIT_S and self._pending is None:
            self._pending = NotAudio(
                f"{self._source.name}: no sound was found in {BUSY_LIMIT_S:.0f} s of searching, it is damaged; "
                "convert it to wav or flac and try again"
            )
