"""An HTTP server that records webhooks and responds with chosen statuses."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class ReceivedWebhook:
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class WebhookReceiver:
    """Responds with `statuses`, one per request, then with 200."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    delay_s: float = 0.0
    received: list[ReceivedWebhook] = field(default_factory=list)


@contextlib.contextmanager
def receive_webhooks() -> Iterator[WebhookReceiver]:
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(ReceivedWebhook(headers, body))
            time.sleep(receiver.delay_s)
            with contextlib.suppress(ConnectionError):
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{http.server_port}/done"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
