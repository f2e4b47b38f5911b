"""A local HTTP server whose routes misbehave on request: errors, truncated bodies, delays, redirects."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Route:
    body: bytes
    content_type: str = "application/octet-stream"
    etag: str | None = None
    ranges: bool = True
    statuses: list[int] = field(default_factory=list)  # returned first, one per request
    cuts: list[int] = field(default_factory=list)  # bytes after which the connection closes, one per request
    redirect: str | None = None
    authorization: str | None = None  # required
    delay_s: float = 0.0  # before each 64 KiB
    declares_length: bool = True
    range_shift: int = 0  # partial responses start this many bytes late


@dataclass(frozen=True)
class ReceivedRequest:
    path: str
    range: str | None
    if_range: str | None
    authorization: str | None
    accept: str | None


class LocalServer:
    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.seen: list[ReceivedRequest] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.local = self  # type: ignore[attr-defined]
        self.host = f"127.0.0.1:{self._http.server_port}"
        self.url = f"http://{self.host}"

    def add(self, path: str, body: bytes = b"", **behaviour: object) -> str:
        self.routes[path] = Route(body, **behaviour)  # type: ignore[arg-type]
        return self.url + path

    def paths(self) -> list[str]:
        return [seen.path for seen in self.seen]


@contextlib.contextmanager
def serve() -> Iterator[LocalServer]:
    server = LocalServer()
    thread = threading.Thread(target=server._http.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server._http.shutdown()
        thread.join()
        server._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        local: LocalServer = self.server.local  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        recorded = ("Range", "If-Range", "Authorization", "Accept")
        local.seen.append(ReceivedRequest(path, *(self.headers.get(name) for name in recorded)))
        route = local.routes.get(path)
        if route is None:
            self._empty(404)
        elif route.statuses:
            self._empty(route.statuses.pop(0))
        elif route.redirect:
            self._empty(302, Location=route.redirect)
        elif route.authorization and self.headers.get("Authorization") != route.authorization:
            self._empty(401)
        else:
            with contextlib.suppress(ConnectionError):
                self._body(route)

    def _empty(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _body(self, route: Route) -> None:
        start = self._start(route)
        if start >= len(route.body) > 0:
            self._empty(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", route.content_type)
        if route.etag:
            self.send_header("ETag", route.etag)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(route.body) - 1}/{len(route.body)}")
        if route.declares_length:
            self.send_header("Content-Length", str(len(route.body) - start))
        else:
            self.close_connection = True
        self.end_headers()
        stop = start + route.cuts.pop(0) if route.cuts else len(route.body)
        self.close_connection |= stop < len(route.body)
        for offset in range(start, min(stop, len(route.body)), 65536):
            time.sleep(route.delay_s)
            self.wfile.write(route.body[offset : min(offset + 65536, stop)])

    def _start(self, route: Route) -> int:
        requested = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        is_same = condition is None or condition == route.etag
        return int(requested[1]) + route.range_shift if requested and route.ranges and is_same else 0

    def log_message(self, format: str, *args: object) -> None:
        pass
