"""How much is under way, and whether there is room for more: what is too much is refused before any of it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from choral.errors import EngineClosed, QueueFull


class Room:
    """Places of one kind. Changed in the event loop only."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit, self._what = limit, what
        self.n_taken = 0
        self.is_closing = False

    def require(self) -> None:
        """For newcomers, before anything of theirs is read."""
        if self.is_closing:
            raise EngineClosed("the server is being shut down: try again in a while, or at another one")
        self._require_place()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Also while the server is being shut down: whoever was let in may finish."""
        self._require_place()
        self.n_taken += 1
        try:
            yield
        finally:
            self.n_taken -= 1

    def _require_place(self) -> None:
        if self.n_taken >= self.limit:
            raise QueueFull(f"{self.n_taken} {self._what} are under way already: try again in a while")
