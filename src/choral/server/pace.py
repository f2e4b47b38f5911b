"""How fast work was finished lately, and so when it is worth coming back.

Whoever is refused should return when about half of what is under way is done: earlier finds no room, later leaves the
device idle. Where nothing was finished yet, the wait grows with the time that nothing was.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
SHORTEST_S, LONGEST_S = 1, 120


class Pace:
    """Changed in the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque()  # when, and how many had been finished by then

    def restart(self) -> None:
        """Work begins after a pause, which says nothing of how fast it goes."""
        done = self._points[-1][1] if self._points else 0
        self._points.clear()
        self.note(done)

    def note(self, n_done: int) -> None:
        """Given what was finished in all so far."""
        now_s = self._clock()
        self._points.append((now_s, n_done))
        while len(self._points) > 1 and self._points[0][0] < now_s - WINDOW_S:
            self._points.popleft()

    def wait_s(self, n_open: int) -> int:
        """When about half of what is open should be done, in whole seconds."""
        if not self._points:
            return SHORTEST_S
        (then_s, done_then), (_, done_now) = self._points[0], self._points[-1]
        each_s = (self._clock() - then_s) / max(1, done_now - done_then)
        return max(SHORTEST_S, min(LONGEST_S, math.ceil(each_s * n_open / 2)))
