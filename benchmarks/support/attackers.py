"""Clients that attack a server, in their own process: bad and slow uploads, stalled WebSockets, hostile jobs.

`python -m support.attackers` replies to every command with the counts so far; `Attackers` is the parent's side.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.client
import json
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from choral.bench.http_client import ROUTE, make_form
from choral.bench.json_process import JsonProcess, serve_messages

TIMEOUT_S = 30.0
HOLD_S = 20.0  # how long a slow client holds its connection
PAUSE_S = 0.2  # between two attacks of a thread
DOCUMENTED = (503, 507)  # refusals; any other status from 500 up is a defect
REPORTED = 20  # unexpected responses that are kept


@dataclasses.dataclass(frozen=True)
class AttackCounts:
    attacks: dict[str, int]  # by kind
    statuses: dict[str, int]  # of responses; "none": the connection was closed without one
    unexpected: tuple[str, ...]  # undocumented errors of the server


class Attackers(JsonProcess):
    def __init__(self, url: str, n_each: int) -> None:
        """`n_each` threads for every kind of attack."""
        super().__init__("support.attackers", {"url": url, "n_each": n_each})

    def command(self, command: str) -> AttackCounts:
        """`start`, `stop` or `counts`."""
        fields = self.request(command)
        return AttackCounts(**{**fields, "unexpected": tuple(fields["unexpected"])})


class TarPit:
    """An HTTP server that responds with a byte every second: as the source of audio and as a receiver of webhooks."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "100000")
                self.end_headers()
                with contextlib.suppress(OSError):
                    for _ in range(60):
                        self.wfile.write(b"0")
                        time.sleep(1)

            def do_POST(self) -> None:
                time.sleep(60)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()


class AttackerThreads:
    """The child's side."""

    def __init__(self, url: str, n_each: int) -> None:
        self._host, self._n_each = urlsplit(url).netloc, n_each
        self._tar_pit = TarPit()
        self._lock = threading.Lock()
        self._attacks: Counter[str] = Counter()
        self._statuses: Counter[str] = Counter()
        self._unexpected: list[str] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def run_command(self, command: str) -> AttackCounts:
        if command == "start":
            kinds: tuple[Callable[[random.Random], None], ...] = (
                self._bad_upload,
                self._slow_upload,
                self._stalled_websocket,
                self._hostile_job,
            )
            jobs = [(kind, number) for kind in kinds for number in range(self._n_each)]
            self._threads = [threading.Thread(target=self._run, args=job, daemon=True) for job in jobs]
            for thread in self._threads:
                thread.start()
        elif command == "stop":
            self._stop.set()
            for thread in self._threads:
                thread.join()
        with self._lock:
            return AttackCounts(dict(self._attacks), dict(self._statuses), tuple(self._unexpected))

    def _run(self, attack: Callable[[random.Random], None], number: int) -> None:
        draw = random.Random(f"{attack.__name__} {number}")
        while not self._stop.wait(draw.uniform(0, 2 * PAUSE_S)):
            attack(draw)
            with self._lock:
                self._attacks[attack.__name__.lstrip("_")] += 1

    # --- kinds of attacks ---

    def _bad_upload(self, draw: random.Random) -> None:
        garbage = draw.choice(
            (b"", draw.randbytes(20_000), b"RIFF\xff\xff\xff\x7fWAVEfmt " + draw.randbytes(5000), bytes(2**20))
        )
        body, headers = make_form("talk.wav", garbage, {})
        match draw.randrange(5):
            case 0:
                headers["Content-Type"] += "; charset=punycode"
            case 1:
                body, headers = make_form("talk.wav", garbage, {"prompt": "a" * 500_000, "temperature": "9" * 400})
            case 2:
                body = body[: len(body) // 2]
            case 3:
                body, headers = b"&".join(b"f%d=1" % i for i in range(20_000)), {}
                headers["Content-Type"] = "application/x-www-form-urlencoded"
        self._send("POST", draw.choice((ROUTE, "/v1/jobs")), body, headers)

    def _slow_upload(self, draw: random.Random) -> None:
        _, headers = make_form("talk.wav", b"", {})
        lines = [f"POST {ROUTE} HTTP/1.1", f"Host: {self._host}", "Content-Length: 100000000"]
        head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()
        self._trickle(head[: draw.choice((len(head), len(head) // 2))], b"0", draw.choice((0.1, 1.0)))

    def _stalled_websocket(self, draw: random.Random) -> None:
        """Floods a session with bad events and does not read the errors."""
        key = base64.b64encode(draw.randbytes(16)).decode()
        lines = ("GET /v1/realtime?intent=transcription HTTP/1.1", f"Host: {self._host}", "Connection: Upgrade",
                 "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", "", "")  # fmt: skip
        frame = b"\x81\x82\x00\x00\x00\x00{}"  # a masked text message
        self._trickle("\r\n".join(lines).encode(), frame * draw.choice((1, 1000)), 0.05)

    def _hostile_job(self, draw: random.Random) -> None:
        fields: dict[str, object] = {"url": draw.choice((self._tar_pit.url, "http://127.0.0.1:1/", "http://[::1]/"))}
        match draw.randrange(5):
            case 0:
                fields["temperature"] = [1.0] * 20_000
            case 1:
                fields["callback"] = draw.choice((self._tar_pit.url, "http://127.0.0.1:99999999999999999999/"))
            case 2:
                fields["clip_timestamps"] = [float(second) for second in range(20_000)]
            case 3:
                fields["initial_prompt"] = "\ud800" * 100
        self._send("POST", "/v1/jobs", json.dumps(fields).encode(), {"Content-Type": "application/json"})
        self._send("GET", "/v1/jobs?limit=1000", b"", {})

    # --- transport ---

    def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            self._count(str(response.status), f"{method} {path}: {response.status} {text[:200]}")
        except (OSError, http.client.HTTPException):
            self._count("none", "")
        finally:
            connection.close()

    def _trickle(self, first: bytes, more: bytes, every_s: float) -> None:
        """Send `more` repeatedly without reading, until the server closes the connection or `HOLD_S` have passed."""
        host, port = self._host.rsplit(":", 1)
        deadline_s = time.monotonic() + HOLD_S
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            connection.settimeout(1.0)
            connection.sendall(first)
            while time.monotonic() < deadline_s and not self._stop.wait(every_s):
                with contextlib.suppress(TimeoutError):
                    connection.sendall(more)

    def _count(self, status: str, text: str) -> None:
        with self._lock:
            self._statuses[status] += 1
            is_defect = status.isdecimal() and int(status) >= 500 and int(status) not in DOCUMENTED
            if is_defect and len(self._unexpected) < REPORTED:
                self._unexpected.append(text)


if __name__ == "__main__":
    os.environ.pop("CHORAL_API_KEY", None)
    serve_messages(lambda message: AttackerThreads(**message).run_command)
