"""Request tracing: `span("prep")` and `set_attribute("choral.audio_s", 3.2)`, exported with OpenTelemetry.

The trace of a request is found through a context variable, so callers do not pass it on; without `--otel` both do
nothing. Spans go to a collector as OTLP over HTTP, configured by the standard variables
(`OTEL_EXPORTER_OTLP_ENDPOINT` …). A request with a W3C `traceparent` joins its caller's trace. The SDK exports on its
own thread: if the collector is down, only the spans are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from choral import __version__
from choral.errors import MissingDependency
from choral.server.api_errors import FIRST_SERVER_STATUS

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

FLUSH_TIMEOUT_MS = 3000  # at shutdown
_current: ContextVar[RequestTrace | None] = ContextVar("choral_trace", default=None)


def span(name: str) -> AbstractContextManager[None]:
    """A child span of the current request."""
    trace = _current.get()
    return nullcontext() if trace is None else trace.span(name)


def set_attribute(name: str, value: str | int | float) -> None:
    """An attribute of the current request's root span."""
    if (trace := _current.get()) is not None:
        trace.root.set_attribute(name, value)


def set_result(name: str, status: int) -> None:
    """Name the request's root span after its route, with the HTTP status."""
    if (trace := _current.get()) is not None:
        trace.root.update_name(name)
        trace.root.set_attribute("http.response.status_code", status)
        if status >= FIRST_SERVER_STATUS:
            _mark_failed(trace.root, str(status))


class RequestTrace:
    def __init__(self, tracer: Tracer, root: Span) -> None:
        from opentelemetry.trace import set_span_in_context

        self.root, self._tracer = root, tracer
        self._context = set_span_in_context(root)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        span = self._tracer.start_span(name, self._context)
        try:
            yield
        except BaseException as error:
            _mark_failed(span, type(error).__name__)
            raise
        finally:
            span.end()


class Tracing:
    """The OpenTelemetry SDK: a tracer provider with a batching OTLP exporter."""

    def __init__(self) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as missing:
            raise MissingDependency("traces need OpenTelemetry: pip install 'choral[otel]'") from missing
        resource = Resource.create({"service.name": "choral", "service.version": __version__})
        self._provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("choral.server", __version__)

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[None]:
        """The root span of a request; its trace is the current one inside."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(headers)
        root = self._tracer.start_span(method, parent, SpanKind.SERVER, {"http.request.method": method})
        token = _current.set(RequestTrace(self._tracer, root))
        try:
            yield
        finally:
            _current.reset(token)
            root.end()

    def close(self) -> None:
        """Block while the last spans are exported, for a few seconds at most."""
        self._provider.force_flush(FLUSH_TIMEOUT_MS)
        self._provider.shutdown()


def _mark_failed(span: Span, error_type: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", error_type)
