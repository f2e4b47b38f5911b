"""Prometheus metrics of jobs, for workers and for the server's own queue, and a worker's optional HTTP endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from choral.errors import MissingDependency, UsageError
from choral.jobs.job_states import ENDED, State
from choral.jobs.record import Timings

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
except ImportError as missing:
    raise MissingDependency("workers need the package prometheus-client: pip install 'choral[jobs]'") from missing

PHASE_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


class JobMetrics:
    """Of the jobs that a process runs, whichever store they are in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._jobs = Counter("choral_jobs", "jobs that ended in this process, by state", ["state"], registry=registry)
        for state in ENDED:
            self._jobs.labels(state)
        self._phases = Histogram(
            "choral_job_phase_seconds",
            "seconds of each phase of a job",
            ["phase"],
            buckets=PHASE_BUCKETS_S,
            registry=registry,
        )
        self.retries = Counter("choral_job_retries", "failed attempts that are retried", registry=registry)
        self.webhooks = Counter(
            "choral_webhooks", "attempts to deliver a webhook, by outcome", ["outcome"], registry=registry
        )
        self.queue = Gauge(
            "choral_queue_jobs", "jobs waiting in the queue, by priority", ["priority"], registry=registry
        )

    def count_end(self, state: State, timings: Timings | None = None) -> None:
        self._jobs.labels(state).inc()
        if timings is not None:
            for phase in ("queued", "fetch", "decode", "engine"):
                phase_s = getattr(timings, f"{phase}_s")
                if phase_s is not None:
                    self._phases.labels(phase).observe(phase_s)


class WorkerMetrics(JobMetrics):
    def __init__(self) -> None:
        registry = CollectorRegistry()
        super().__init__(registry)
        self.batch_sizes = Histogram("choral_batch_jobs", "jobs in a batch", buckets=BATCH_BUCKETS, registry=registry)
        self.audio_s = Counter("choral_audio_seconds", "seconds of audio transcribed", registry=registry)
        self._dead_letters = Counter("choral_dead_letters", "jobs put on the dead-letter list", registry=registry)
        self.claims = Counter("choral_claims", "jobs taken over from workers that are gone", registry=registry)
        self.held = Gauge(
            "choral_jobs_held", "jobs that this worker is running, by phase", ["phase"], registry=registry
        )
        self.prep_backlog = Gauge(
            "choral_prep_backlog", "requests that have not ended, by phase", ["phase"], registry=registry
        )
        self.busy_share = Gauge(
            "choral_engine_busy_share", "share of the last minute that the engine was busy", registry=registry
        )

    def count_end(self, state: State, timings: Timings | None = None) -> None:
        super().count_end(state, timings)
        if state == "dead":
            self._dead_letters.inc()


@contextmanager
def serve_metrics(metrics: WorkerMetrics, host: str, port: int | None) -> Iterator[None]:
    """Serve http://host:port/metrics inside the context; with port None, do nothing."""
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except (OSError, OverflowError) as error:
        text = f"metrics cannot be served at {host}:{port} ({error}): choose another --metrics-port or --metrics-host"
        raise UsageError(text) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
