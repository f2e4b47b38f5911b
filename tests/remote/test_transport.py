"""`open_url`: an address that cannot be used is a `RefusedError`, also where a redirect leads to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from choral.remote.ssrf_guard import SsrfGuard
from choral.remote.transport import RefusedError, open_url

PORTS = ("99999999999999999999", "65536", "4294967376", "-1", "9" * 5000)


@pytest.fixture(scope="module")
def redirecting() -> Iterator[str]:
    """The address of a server that redirects /PORT to that port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.path[1:]}/")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.mark.parametrize("guard", [None, SsrfGuard(("127.0.0.1",))])
@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("body", [None, b"{}"])
def test_port_out_of_range(port: str, guard: SsrfGuard | None, body: bytes | None) -> None:
    with pytest.raises(RefusedError, match="not a valid URL"):
        open_url(f"http://127.0.0.1:{port}/", headers={}, timeout_s=5, guard=guard, body=body)


@pytest.mark.parametrize("guard", [None, SsrfGuard(("127.0.0.1",))])
@pytest.mark.parametrize("port", PORTS)
def test_redirect_to_a_port_out_of_range(redirecting: str, port: str, guard: SsrfGuard | None) -> None:
    with pytest.raises(RefusedError, match="not valid: its port must be"):
        open_url(f"{redirecting}/{port}", headers={}, timeout_s=5, guard=guard)
