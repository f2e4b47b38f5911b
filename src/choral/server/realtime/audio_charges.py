"""Charges the audio of a session to its API key, a few seconds at a time."""

from __future__ import annotations

from collections.abc import Callable

from choral.server.realtime.session_host import SessionMetrics

CHARGE_INTERVAL_S = 5.0


class AudioCharges:
    def __init__(self, metrics: SessionMetrics, charge: Callable[[float], None]) -> None:
        self._metrics, self._charge = metrics, charge
        self._uncharged_s = 0.0

    def add(self, duration_s: float) -> None:
        self._uncharged_s += duration_s
        if self._uncharged_s >= CHARGE_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        if self._uncharged_s:
            self._metrics.add_audio(self._uncharged_s)
            self._charge(self._uncharged_s)
            self._uncharged_s = 0.0
