"""An OpenTelemetry collector for tests: decodes and stores spans sent as OTLP over HTTP."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtelCollector:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self._has_more = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_packed = self.headers.get("content-encoding") == "gzip"
                collector._take(self.path, gzip.decompress(body) if is_packed else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        with self._has_more:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
                self.services.add(attributes["service.name"])
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self._has_more.notify_all()

    def trace(self, trace_id: str, n_spans: int, timeout_s: float = 20.0) -> list[Span]:
        """The spans of one trace in the order of their starts, once there are that many."""

        def found() -> list[Span]:
            return [span for span in self.spans if span.trace_id.hex() == trace_id]

        with self._has_more:
            assert self._has_more.wait_for(lambda: len(found()) >= n_spans, timeout_s), self.spans
            return sorted(found(), key=lambda span: span.start_time_unix_nano)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> OtelCollector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
