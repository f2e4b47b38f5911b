"""Prometheus metrics of the server, and of the engine's statistics, which are read on every scrape."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from choral.errors import MissingDependency

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    from choral.jobs.metrics import JobMetrics
except ImportError as missing:
    raise MissingDependency("the server needs the package prometheus-client: pip install 'choral[server]'") from missing

if TYPE_CHECKING:
    from choral.api import Model
    from choral.serving.runtime import Runtime

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
SPEED_RATIOS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class ServerMetrics:
    def __init__(self, model: Model, runtime: Runtime) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "choral_http_requests",
            "responses by method, route and status",
            ["method", "route", "status"],
            registry=registry,
        )
        self.request_s = Histogram(
            "choral_http_request_seconds",
            "time from the start of a request to the end of its response",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.open_requests = Gauge("choral_http_requests_open", "requests in progress", registry=registry)
        self.prep_s = Histogram(
            "choral_prep_seconds", "time to fetch and decode the audio of a request", buckets=SECONDS, registry=registry
        )
        self.queue_s = Histogram(
            "choral_queue_seconds", "time a request waits before it starts", buckets=SECONDS, registry=registry
        )
        self.first_text_s = Histogram(
            "choral_first_text_seconds",
            "time from a complete upload to the first text",
            buckets=SECONDS,
            registry=registry,
        )
        self.audio_s = Counter("choral_audio_seconds", "seconds of audio transcribed", registry=registry)
        self.audio_speed_ratio = Histogram(
            "choral_audio_speed_ratio",
            "seconds of audio per second of decoding and transcribing, by request",
            buckets=SPEED_RATIOS,
            registry=registry,
        )
        self.jobs = JobMetrics(registry)
        registry.register(EngineCollector(model, runtime))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class EngineCollector(Collector):
    """Reads the engine's statistics on every scrape, so that the engine does not depend on Prometheus."""

    def __init__(self, model: Model, runtime: Runtime) -> None:
        self._model, self._runtime = model, runtime

    def collect(self) -> Iterator[Metric]:
        stats = self._model.stats
        counts = {
            "windows": (stats.windows, "windows that left the engine"),
            "windows_failed": (stats.failed, "windows that failed"),
            "windows_cancelled": (stats.cancelled, "windows that were cancelled"),
            "windows_encoded": (stats.encoded, "windows encoded; divided by encoder steps, the mean batch size"),
            "cache_hits": (stats.cache_hits, "windows whose encoder result was cached"),
            "encoder_steps": (stats.encoder_steps, "encoder steps"),
            "decoder_steps": (stats.steps, "decoder steps"),
            "tokens": (stats.rows, "tokens decoded; divided by decoder steps, the mean batch size"),
            "busy_seconds": (stats.busy_s, "seconds spent in steps"),
        }
        for name, (value, text) in counts.items():
            yield CounterMetricFamily(f"choral_engine_{name}", text, value=value)
        yield GaugeMetricFamily("choral_engine_windows_waiting", "windows waiting for a slot", value=stats.waiting)
        yield GaugeMetricFamily("choral_engine_cache_bytes", "size of the encoder cache", value=stats.cache_bytes)
        yield GaugeMetricFamily("choral_engine_slots", "slots in the decoder's batch", value=self._model.n_slots)
        failed = self._model.failed_devices
        devices = GaugeMetricFamily("choral_engine_device_up", "0: the device fails at everything", labels=["device"])
        for device in sorted(set(self._model.device.split(", "))):
            devices.add_metric([device], device not in failed)
        yield devices
        phases = GaugeMetricFamily("choral_prep_backlog", "requests that have not ended, by phase", labels=["phase"])
        for phase, n_requests in dataclasses.asdict(self._runtime.backlog).items():
            phases.add_metric([phase], n_requests)
        yield phases
