"""A local HTTP server for workers: it serves files, optionally after a delay, and receives signed webhooks."""

from __future__ import annotations

import hmac
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from choral.jobs.webhook_delivery import sign, signing_key


class HttpStub:
    def __init__(self, secret: str = "", delay_s: float = 0.0) -> None:
        self.secret, self.delay_s = secret, delay_s
        self.files: dict[str, bytes | Path] = {}
        self.deliveries: Counter[str] = Counter()  # correctly signed webhooks by job id
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.stub = self  # type: ignore[attr-defined]
        self.host = f"127.0.0.1:{self._http.server_port}"
        self.url = f"http://{self.host}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def serve(self, path: Path) -> str:
        """Serve this file, and return its URL."""
        return self.serve_as(path.name, path)

    def serve_as(self, name: str, content: bytes | Path) -> str:
        self.files[f"/{name}"] = content
        return f"{self.url}/{name}"

    def __enter__(self) -> HttpStub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _stub(self) -> HttpStub:
        stub: HttpStub = self.server.stub  # type: ignore[attr-defined]
        return stub

    def do_GET(self) -> None:
        time.sleep(self._stub.delay_s)
        content = self._stub.files.get(self.path)
        body = content.read_bytes() if isinstance(content, Path) else content
        self._respond(404 if body is None else 200, body or b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        timestamp = int(self.headers["webhook-timestamp"])
        expected = sign(signing_key(self._stub.secret), self.headers["webhook-id"], timestamp, body)
        if not hmac.compare_digest(self.headers.get("webhook-signature", ""), expected):
            self._respond(400, b"wrong signature")
            return
        self._stub.deliveries[json.loads(body)["id"]] += 1
        self._respond(204, b"")

    def _respond(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
