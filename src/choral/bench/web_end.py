"""The outside world of a worker, on this machine: a server of files, and a receiver of webhooks that checks them."""

from __future__ import annotations

import hmac
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from choral.jobs.webhook_delivery import signature


class WebEnd:
    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.files: dict[str, Path] = {}
        self.deliveries: Counter[str] = Counter()  # how often each idempotency key came, rightly signed
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.end = self  # type: ignore[attr-defined]
        self.host = f"127.0.0.1:{self._http.server_port}"
        self.url = f"http://{self.host}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def serve(self, path: Path) -> str:
        """The address of this file."""
        self.files[f"/{path.name}"] = path
        return f"{self.url}/{path.name}"

    def __enter__(self) -> WebEnd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        end: WebEnd = self.server.end  # type: ignore[attr-defined]
        path = end.files.get(self.path)
        self._answer(404 if path is None else 200, b"" if path is None else path.read_bytes())

    def do_POST(self) -> None:
        end: WebEnd = self.server.end  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        signed = self.headers.get("Choral-Signature", "")
        at = signed.partition(",")[0].removeprefix("t=")
        if not (at.isdecimal() and hmac.compare_digest(signed, signature(end.secret, body, int(at)))):
            self._answer(400, b"wrong signature")
            return
        end.deliveries[self.headers.get("Idempotency-Key", "")] += 1
        self._answer(204, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
