"""How much is under way, and whether there is room for more: what is too much is refused before any of it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from choral.errors import EngineClosed, QueueFull
from choral.server.pace import Pace


class Room:
    """Places of one kind. Changed in the event loop only."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit, self._what = limit, what
        self.n_taken = self._n_done = 0
        self.is_closing = False
        self._pace = Pace()

    def require(self) -> None:
        """For newcomers, before anything of theirs is read."""
        if self.is_closing:
            raise EngineClosed("the server is being shut down: try again in a while, or at another one")
        self._require_place()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Also while the server is being shut down: whoever was let in may finish."""
        self._require_place()
        if self.n_taken == 0:
            self._pace.restart()
        self.n_taken += 1
        try:
            yield
        finally:
            self.n_taken -= 1
            self._n_done += 1
            self._pace.note(self._n_done)

    def _require_place(self) -> None:
        if self.n_taken >= self.limit:
            wait_s = self._pace.wait_s(self.n_taken)
            text = f"{self.n_taken} {self._what} are under way already: try again in {wait_s} s"
            raise QueueFull(text, retry_after_s=wait_s)
