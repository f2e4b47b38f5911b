"""What live audio adds to the numbers for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30)


@dataclass(frozen=True)
class LiveMeasures:
    sessions: Gauge
    audio_s: Counter
    text_s: Histogram
    completed_s: Histogram

    @classmethod
    def of(cls, registry: CollectorRegistry) -> LiveMeasures:
        return cls(
            sessions=Gauge("choral_realtime_sessions_open", "live sessions", registry=registry),
            audio_s=Counter("choral_realtime_audio_seconds", "seconds of live audio that came", registry=registry),
            text_s=Histogram(
                "choral_realtime_text_seconds",
                "from the newest sound of a hypothesis to the text that became stable with it",
                buckets=SECONDS,
                registry=registry,
            ),
            completed_s=Histogram(
                "choral_realtime_completed_seconds",
                "from the end of a turn to its whole text",
                buckets=SECONDS,
                registry=registry,
            ),
        )
