"""Prometheus metrics of the server, and of the engine's statistics, which are read on every scrape."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
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
    from choral.server.model_loader import LoadedModel
    from choral.server.model_pool import ModelPool

COUNTERS = {  # by their metric: the field of `EngineStats`
    "windows": ("windows", "windows that left the engine"),
    "windows_failed": ("failed", "windows that failed"),
    "windows_cancelled": ("cancelled", "windows that were cancelled"),
    "windows_encoded": ("encoded", "windows encoded; divided by encoder steps, the mean batch size"),
    "cache_hits": ("cache_hits", "windows whose encoder result was cached"),
    "encoder_steps": ("encoder_steps", "encoder steps"),
    "decoder_steps": ("steps", "decoder steps"),
    "tokens": ("rows", "tokens decoded; divided by decoder steps, the mean batch size"),
    "busy_seconds": ("busy_s", "seconds spent in steps"),
}
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
SPEED_RATIOS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class ServerMetrics:
    def __init__(self, models: ModelPool) -> None:
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
        self.audio_s = Counter(
            "choral_audio_seconds", "seconds of audio transcribed, by model", ["model"], registry=registry
        )
        for model_id in models.names.model_ids:
            self.audio_s.labels(model_id)  # 0 until the first request
        self.audio_speed_ratio = Histogram(
            "choral_audio_speed_ratio",
            "seconds of audio per second of decoding and transcribing, by request",
            buckets=SPEED_RATIOS,
            registry=registry,
        )
        self.jobs = JobMetrics(registry)
        registry.register(EngineCollector(models))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class EngineCollector(Collector):
    """Reads the statistics of loaded models on every scrape, so that the engine does not depend on Prometheus."""

    def __init__(self, models: ModelPool) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        loaded = self._models.loaded
        stats = {model.id: model.model.stats for model in loaded}
        for name, (field, text) in COUNTERS.items():
            counter = CounterMetricFamily(f"choral_engine_{name}", text, labels=["model"])
            for model_id, values in stats.items():
                counter.add_metric([model_id], getattr(values, field))
            yield counter
        waiting = GaugeMetricFamily("choral_engine_windows_waiting", "windows waiting for a slot", labels=["model"])
        cache = GaugeMetricFamily("choral_engine_cache_bytes", "size of the encoder cache", labels=["model"])
        slots = GaugeMetricFamily("choral_engine_slots", "slots in the decoder's batch", labels=["model"])
        for model in loaded:
            waiting.add_metric([model.id], stats[model.id].waiting)
            cache.add_metric([model.id], stats[model.id].cache_bytes)
            slots.add_metric([model.id], model.model.n_slots)
        yield from (waiting, cache, slots, _devices(loaded), _backlog(loaded))
        yield from self._collect_models()

    def _collect_models(self) -> Iterator[Metric]:
        is_loaded = GaugeMetricFamily("choral_model_loaded", "1: the model is in memory", labels=["model"])
        memory = GaugeMetricFamily(
            "choral_model_memory_bytes", "memory of the model's engine, if it has its own process", labels=["model"]
        )
        loads = CounterMetricFamily("choral_model_loads", "how often the model was loaded", labels=["model"])
        for entry in self._models.entries:
            loaded = entry.loaded  # the event loop may unload it meanwhile
            is_loaded.add_metric([entry.info.id], loaded is not None)
            memory.add_metric([entry.info.id], 0 if loaded is None else loaded.memory_bytes)
            loads.add_metric([entry.info.id], entry.n_loads)
        yield from (is_loaded, memory, loads)


def _devices(loaded: Sequence[LoadedModel]) -> Metric:
    up = GaugeMetricFamily("choral_engine_device_up", "0: the device fails at everything", labels=["model", "device"])
    for model in loaded:
        failed = model.model.failed_devices
        for device in sorted(set(model.model.device.split(", "))):
            up.add_metric([model.id, device], device not in failed)
    return up


def _backlog(loaded: Sequence[LoadedModel]) -> Metric:
    backlog = GaugeMetricFamily(
        "choral_prep_backlog", "requests that have not ended, by phase", labels=["model", "phase"]
    )
    for model in loaded:
        for phase, n_requests in dataclasses.asdict(model.runtime.backlog).items():
            backlog.add_metric([model.id, phase], n_requests)
    return backlog
