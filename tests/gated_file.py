"""A file that delivers its bytes when a test allows it, as a slow disk or network drive would."""

from __future__ import annotations

import io
import threading


class GatedFile(io.BytesIO):
    """`read` waits where it would go beyond the gate, until the gate moves or an error is put there."""

    name = "gated.wav"

    def __init__(self, data: bytes, gate: int) -> None:
        super().__init__(data)
        self.size = len(data)
        self._gate, self._error = gate, OSError()
        self._has_error = False
        self._changed = threading.Condition()

    def open_gate(self) -> None:
        with self._changed:
            self._gate = self.size
            self._changed.notify_all()

    def fail(self, error: OSError) -> None:
        with self._changed:
            self._error, self._has_error = error, True
            self._changed.notify_all()

    def read(self, size: int | None = -1) -> bytes:
        end = self.size if size is None or size < 0 else min(self.tell() + size, self.size)
        with self._changed:
            self._changed.wait_for(lambda: self._gate >= end or self._has_error)
            if self._gate < end:
                raise self._error
        return super().read(size)
