"""OpenTelemetry: a span for each request and one for each of its parts, sent to a collector as OTLP over HTTP.

Where to, what is sampled and what the service is called is told by the standard variables,
`OTEL_EXPORTER_OTLP_ENDPOINT` and so on. A request that comes with a W3C `traceparent` belongs to its caller's trace.
Spans are sent by a thread of the SDK; a collector that is away costs the spans and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from choral import __version__
from choral.errors import MissingDependency
from choral.server.problems import FIRST_SERVER_STATUS
from choral.server.traces import Fact, current

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise MissingDependency("traces need OpenTelemetry: pip install 'choral[otel]'") from missing

LAST_SPANS_MS = 3000  # to send what is left at the end


class SpanTrace:
    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self._context = set_span_in_context(span)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        span = self._tracer.start_span(name, self._context)
        try:
            yield
        except BaseException as error:
            _failed(span, type(error).__name__)
            raise
        finally:
            span.end()

    def tell(self, name: str, fact: Fact) -> None:
        self._span.set_attribute(name, fact)

    def answered(self, name: str, status: int) -> None:
        self._span.update_name(name)
        self._span.set_attribute("http.response.status_code", status)
        if status >= FIRST_SERVER_STATUS:
            _failed(self._span, str(status))


class OtelTracing:
    def __init__(self) -> None:
        named = Resource.create({"service.name": "choral", "service.version": __version__})
        self._provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("choral.server", __version__)

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[None]:
        parent = TraceContextTextMapPropagator().extract(headers)
        span = self._tracer.start_span(method, parent, SpanKind.SERVER, {"http.request.method": method})
        token = current.set(SpanTrace(self._tracer, span))
        try:
            yield
        finally:
            current.reset(token)
            span.end()

    def close(self) -> None:
        """Blocks while the last spans are sent, for a few seconds at most."""
        self._provider.force_flush(LAST_SPANS_MS)
        self._provider.shutdown()


def _failed(span: Span, kind: str) -> None:
    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", kind)
