"""How fast a worker has been lately: seconds of audio a second, and the share of time that its engine was busy."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0


@dataclass(frozen=True)
class Rates:
    audio_per_s: float
    busy_share: float


class RateMeter:
    def __init__(self) -> None:
        self._points: deque[tuple[float, float, float]] = deque([(time.monotonic(), 0.0, 0.0)])

    def note(self, audio_s: float, busy_s: float) -> Rates:
        """Given what was done in all so far."""
        now_s = time.monotonic()
        self._points.append((now_s, audio_s, busy_s))
        while len(self._points) > 2 and now_s - self._points[1][0] >= WINDOW_S:
            self._points.popleft()
        then_s, audio_then_s, busy_then_s = self._points[0]
        spent_s = max(now_s - then_s, 1e-9)
        return Rates((audio_s - audio_then_s) / spent_s, min(1.0, (busy_s - busy_then_s) / spent_s))
