"""What the server counts, for Prometheus: its own numbers, and those that the engine's statistics tell when asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from choral.errors import MissingDependency
from choral.jobs.record import ENDED

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise MissingDependency("the server needs the package prometheus-client: pip install 'choral[server]'") from missing

if TYPE_CHECKING:
    from choral.api import Model
    from choral.audio.prep.pool import PrepPool

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
SPEED_RATIOS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class ServerMetrics:
    def __init__(self, model: Model, prep: PrepPool) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "choral_http_requests", "answers, by route and status", ["method", "route", "status"], registry=registry
        )
        self.request_s = Histogram(
            "choral_http_request_seconds",
            "from the first byte to the last",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.open_requests = Gauge("choral_http_requests_open", "that are being answered", registry=registry)
        self.prep_s = Histogram(
            "choral_prep_seconds", "fetching and decoding, of a request", buckets=SECONDS, registry=registry
        )
        self.queue_s = Histogram(
            "choral_queue_seconds", "prepared and waiting for room in the engine", buckets=SECONDS, registry=registry
        )
        self.first_text_s = Histogram(
            "choral_first_text_seconds", "from a whole request to its first text", buckets=SECONDS, registry=registry
        )
        self.audio_s = Counter("choral_audio_seconds", "seconds of audio transcribed", registry=registry)
        self.audio_speed_ratio = Histogram(
            "choral_audio_speed_ratio",
            "seconds of audio for a second in the engine, of a request",
            buckets=SPEED_RATIOS,
            registry=registry,
        )
        self.jobs = Counter("choral_jobs", "jobs that ended here, by state", ["state"], registry=registry)
        for state in ENDED:
            self.jobs.labels(state)
        self.queued_jobs = Gauge(
            "choral_queue_jobs", "jobs that wait for their turn here, by priority", ["priority"], registry=registry
        )
        registry.register(EngineCollector(model, prep))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class EngineCollector(Collector):
    """Reads the statistics when they are asked for, so the engine need not know of Prometheus."""

    def __init__(self, model: Model, prep: PrepPool) -> None:
        self._model, self._prep = model, prep

    def collect(self) -> Iterator[Metric]:
        stats = self._model.stats
        counts = {
            "windows": (stats.windows, "windows that have left the engine"),
            "windows_failed": (stats.failed, "windows that failed"),
            "windows_cancelled": (stats.cancelled, "windows that were cancelled"),
            "windows_encoded": (stats.encoded, "windows that went through the encoder: by its steps, the batch size"),
            "cache_hits": (stats.cache_hits, "windows whose audio was encoded already"),
            "encoder_steps": (stats.encoder_steps, "passes of the encoder"),
            "decoder_steps": (stats.steps, "steps of the decoder"),
            "tokens": (stats.rows, "tokens decoded: by the decoder's steps, how full they were"),
            "busy_seconds": (stats.busy_s, "seconds spent in steps"),
        }
        for name, (value, text) in counts.items():
            yield CounterMetricFamily(f"choral_engine_{name}", text, value=value)
        yield GaugeMetricFamily("choral_engine_windows_waiting", "windows without a place", value=stats.waiting)
        yield GaugeMetricFamily("choral_engine_cache_bytes", "encoder results that are kept", value=stats.cache_bytes)
        yield GaugeMetricFamily("choral_engine_slots", "places in the decoder's batch", value=self._model.n_slots)
        backlog = self._prep.backlog
        phases = GaugeMetricFamily("choral_prep_backlog", "requests in the prep pool, by phase", labels=["phase"])
        for phase in ("waiting", "fetching", "fetched", "decoding"):
            phases.add_metric([phase], getattr(backlog, phase))
        yield phases
        yield GaugeMetricFamily("choral_prep_memory_bytes", "memory of prepared audio", value=backlog.memory_bytes)
