"""The open realtime sessions of a server: admission limit, Prometheus metrics, and draining at shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from choral.server.admission import AdmissionControl
from choral.server.realtime.client_secrets import ClientSecrets
from choral.server.realtime.session_host import handler_slots

if TYPE_CHECKING:
    from choral.server.realtime.session_pool import SessionPool

LATENCY_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30)

Drain = Callable[[], None]


class RealtimeMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.open_sessions = Gauge("choral_realtime_sessions_open", "open realtime sessions", registry=registry)
        self.audio_s = Counter(
            "choral_realtime_audio_seconds", "seconds of audio received in realtime sessions", registry=registry
        )
        self.text_s = Histogram(
            "choral_realtime_text_seconds",
            "from the newest audio of a hypothesis to the text it confirms",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.completed_s = Histogram(
            "choral_realtime_completed_seconds",
            "from the end of a turn to its complete text",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )

    def add_audio(self, duration_s: float) -> None:
        self.audio_s.inc(duration_s)

    def observe_text(self, delay_s: float) -> None:
        self.text_s.observe(delay_s)

    def observe_completed(self, delay_s: float) -> None:
        self.completed_s.observe(delay_s)


class SessionRegistry:
    """Used in the event loop only."""

    def __init__(self, max_sessions: int, registry: CollectorRegistry) -> None:
        self.admission = AdmissionControl(max_sessions, "realtime sessions")
        self.metrics = RealtimeMetrics(registry)
        self.client_secrets = ClientSecrets()
        self.slots = handler_slots()  # of the sessions in this process
        self.pool: SessionPool | None = None  # None: all sessions run in this process
        self._drains: set[Drain] = set()
        self._session_closed = asyncio.Event()

    @property
    def has_started(self) -> bool:
        """Whether sessions find a process: those that come before wait for one to start."""
        return self.pool is None or self.pool.has_started

    def pool_of(self, model_id: str) -> SessionPool | None:
        """The processes for sessions with this model; None: they run in this process."""
        return self.pool if self.pool is not None and self.pool.model_id == model_id else None

    def close(self) -> None:
        """Refuse new sessions from now on."""
        self.admission.is_closing = True

    @contextmanager
    def register(self, drain: Drain) -> Iterator[None]:
        """Count a session while it is open; `drain` asks it to finish its turns and then close."""
        with self.admission.admit():
            self._drains.add(drain)
            self.metrics.open_sessions.inc()
            try:
                yield
            finally:
                self.metrics.open_sessions.dec()
                self._drains.discard(drain)
                self._session_closed.set()

    async def drain(self) -> None:
        """Refuse new sessions, ask the open ones to finish, and wait until all are closed."""
        self.close()
        for drain in list(self._drains):
            drain()
        while self._drains:
            self._session_closed.clear()
            await self._session_closed.wait()
