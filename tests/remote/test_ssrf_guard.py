"""The SSRF guard against address spellings, redirects and DNS rebinding; aborting endless responses."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar

import pytest

from choral.audio.source import fetch
from choral.errors import AudioRefused, AudioTooLarge, FetchFailed, UsageError
from choral.remote import transport
from choral.remote.abort_handle import AbortHandle
from choral.remote.ssrf_guard import AddressRefused, SocketAddress, SsrfGuard, is_public
from choral.remote.transport import ForbiddenError, RefusedError, UnreachableError, open_url, read
from local_server import LocalServer, serve

BODY = b"sound" * 1_000


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with serve() as server:
        server.add("/sound", BODY)
        yield server


def get(url: str, guard: SsrfGuard) -> bytes:
    with open_url(url, headers={}, timeout_s=5, guard=guard) as response:
        return b"".join(iter(lambda: read(response), b""))


PUBLIC = ["1.1.1.1", "93.184.216.34", "192.0.1.1", "172.32.0.1", "100.128.0.1", "2606:2800:220:1::1", "2001:4860::8888"]
INSIDE = [
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255"),
    *("192.168.1.1", "169.254.169.254", "169.254.0.1", "100.64.0.1", "100.100.100.200", "192.0.0.192"),
    *("168.63.129.16", "192.0.2.1", "198.51.100.7", "203.0.113.7", "198.18.0.1", "192.88.99.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::7f00:1", "::ffff:0:7f00:1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1"),
    *("2001::1", "2001:db8::1", "3fff::1", "100::1", "5f00::1"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", INSIDE)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(AddressRefused, match=r"^some\.host is not a host on the public internet") as caught:
        SsrfGuard(resolve=lambda host, port: [socket_address(address, port)]).connect("some.host", 80, 1)
    assert address not in str(caught.value)


@pytest.mark.parametrize("address", ["64:ff9b::101:101", "::ffff:1.1.1.1", "2002:101:101::"])
def test_embedded_ipv4_addresses(address: str) -> None:
    assert is_public(ip_address(address))


def socket_address(address: str, port: int) -> SocketAddress:
    return (socket.AF_INET6, (address, port, 0, 0)) if ":" in address else (socket.AF_INET, (address, port))


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "2130706433", "0x7f000001", "0177.0.0.1"),
        *("0x7f.1", "017700000001", "0", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "user:pass@127.0.0.1"),
        *("1.1.1.1@127.0.0.1", "127.0.0.1#@1.1.1.1", "1.1.1.1\\@127.0.0.1", "１２７.0.0.1", "127。0。0。1"),
    ],
)
def test_every_spelling_of_localhost_is_refused(server: LocalServer, host: str) -> None:
    address, at, _ = host.partition("#")
    url = f"http://{address}:{server.host.rpartition(':')[2]}{at and '/#'}/sound"
    with pytest.raises(RefusedError) as caught:
        get(url, SsrfGuard())
    assert "public internet" in str(caught.value) or "not known here" in str(caught.value)
    assert server.seen == []


def test_allowed_hosts_are_reachable(server: LocalServer) -> None:
    port = server.host.rpartition(":")[2]
    for allowed in ("127.0.0.1", server.host, "127.0.0.0/8", "127.0.0.1/32", f"127.0.0.1:{port}"):
        assert get(f"{server.url}/sound", SsrfGuard((allowed,))) == BODY
    for allowed in ("localhost", f"localhost:{port}", "LocalHost."):
        assert get(f"http://localhost:{port}/sound", SsrfGuard((allowed,))) == BODY
    for allowed in ("localhost", f"127.0.0.1:{int(port) + 1}", "10.0.0.0/8", "::1", "example.org"):
        with pytest.raises(ForbiddenError, match="allowed hosts"):
            get(f"{server.url}/sound", SsrfGuard((allowed,)))


@pytest.mark.parametrize("spelled", ["2130706433", "0x7f.1", "127.1"])
def test_allowed_network_covers_every_spelling(server: LocalServer, spelled: str) -> None:
    port = server.host.rpartition(":")[2]
    assert get(f"http://{spelled}:{port}/sound", SsrfGuard(("127.0.0.0/8",))) == BODY


@pytest.mark.parametrize(
    "allowed", ["", "http://a", "a/b", "10.0.0.1/8", "*.example.org", "a:b", "a:99999", "u@a", "a b"]
)
def test_invalid_allowed_hosts(allowed: str) -> None:
    with pytest.raises(UsageError, match="give a host, host:port or network"):
        SsrfGuard((allowed,))


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest/meta-data/", "http://[::1]/", "http://localhost:1/"])
def test_redirect_to_a_private_address_is_refused(server: LocalServer, target: str) -> None:
    url = server.add("/away", redirect=target)
    with pytest.raises(AudioRefused, match=r"/away is not fetched: .* is not a host on the public internet"):
        fetch(url, guard=SsrfGuard((server.host,)))
    assert server.paths() == ["/away"]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/"])
def test_redirect_to_another_scheme_is_refused(server: LocalServer, target: str) -> None:
    with pytest.raises(FetchFailed) as caught:
        fetch(server.add("/away", redirect=target), guard=SsrfGuard((server.host,)))
    assert "check the URL" in str(caught.value)


def test_redirect_between_allowed_hosts_is_followed(server: LocalServer) -> None:
    url = server.add("/away", redirect=f"{server.url}/sound")
    with fetch(url, guard=SsrfGuard((server.host,))) as file:
        assert file.read() == BODY


def test_name_is_resolved_once(server: LocalServer) -> None:
    port = int(server.host.rpartition(":")[2])
    answers = [[socket_address("127.0.0.1", port)], [socket_address("10.0.0.1", port)]]
    resolved: list[str] = []

    def resolve(host: str, port: int) -> list[SocketAddress]:
        resolved.append(host)
        return answers[len(resolved) - 1]

    assert get(f"http://changing.test:{port}/sound", SsrfGuard(("127.0.0.1",), resolve)) == BODY
    assert resolved == ["changing.test"]


def test_only_permitted_addresses_of_a_name_are_tried(server: LocalServer) -> None:
    port = int(server.host.rpartition(":")[2])
    both = [
        socket_address("10.255.255.1", port),
        socket_address("127.0.0.1", port),
    ]  # the first would hang
    start_s = time.monotonic()
    assert get(f"http://both.test:{port}/sound", SsrfGuard(("127.0.0.1",), lambda host, port: both)) == BODY
    assert time.monotonic() - start_s < 2


def test_proxy_is_not_used(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ForbiddenError):
        get("http://127.0.0.2:1/sound", SsrfGuard((server.host,)))
    assert server.seen == []


def test_host_header_is_the_name(server: LocalServer) -> None:
    port = int(server.host.rpartition(":")[2])
    host_headers: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host_headers.append(self.headers["Host"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as named:
        thread = threading.Thread(target=named.handle_request)
        thread.start()
        port = named.server_port
        guard = SsrfGuard(("files.test",), lambda host, port: [socket_address("127.0.0.1", port)])
        assert get(f"http://files.test:{port}/", guard) == b""
        thread.join()
    assert host_headers == [f"files.test:{port}"]


def test_tls_verifies_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=files.test"),
            *("-addext", "subjectAltName=DNS:files.test", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    transport._tls_context.cache_clear()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serve() as server:
        server.add("/sound", BODY)
        server._http.socket = context.wrap_socket(server._http.socket, server_side=True)
        port = int(server.host.rpartition(":")[2])
        guard = SsrfGuard(("127.0.0.1",), lambda host, port: [socket_address("127.0.0.1", port)])
        assert get(f"https://files.test:{port}/sound", guard) == BODY
        with pytest.raises(RefusedError, match="certificate is not trusted"):
            get(f"https://other.test:{port}/sound", guard)
    transport._tls_context.cache_clear()


class PostHandler(http.server.BaseHTTPRequestHandler):
    status = 200
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.bodies.append(b"a redirect was followed")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(params=[200, 302, 307, 400, 503])
def hook(request: pytest.FixtureRequest) -> Iterator[tuple[str, type[PostHandler]]]:
    handler = type("Handler", (PostHandler,), {"status": request.param, "bodies": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", handler
        server.shutdown()
        thread.join()


def test_post_is_sent_once_and_follows_no_redirect(hook: tuple[str, type[PostHandler]]) -> None:
    url, handler = hook

    def post() -> int:
        with open_url(url, headers={}, timeout_s=5, body=b"{}", guard=SsrfGuard(("127.0.0.1",))) as response:
            return response.status

    if handler.status == 200:
        assert post() == 200
    else:
        error = UnreachableError if handler.status == 503 else RefusedError
        with pytest.raises(error) as caught:
            post()
        assert caught.value.status == handler.status
    assert handler.bodies == [b"{}"]


def test_post_to_a_private_address_is_refused() -> None:
    with pytest.raises(ForbiddenError, match=r"127\.0\.0\.1 is not a host on the public internet"):
        open_url("http://127.0.0.1:1/hook", headers={}, timeout_s=5, body=b"{}", guard=SsrfGuard())


@contextlib.contextmanager
def trickling(text: bytes, pause_s: float = 0.05) -> Iterator[str]:
    """A server that sends this, and then single bytes forever."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(text)
            while not ended.wait(pause_s):
                try:
                    connection.sendall(b"a")
                except OSError:
                    return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        ended.set()
        thread.join()
        listener.close()


STARTS = {
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
    "body of no length": b"HTTP/1.0 200 OK\r\n\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
    "headers": b"HTTP/1.1 200 OK\r\nX-",
    "status": b"HTTP/1.1 200 O",
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_total_timeout_ends_an_endless_response(start: bytes) -> None:
    with trickling(start) as url:
        start_s = time.monotonic()
        with pytest.raises(FetchFailed, match=r"took over 0\.4 s") as caught:
            fetch(url, total_timeout_s=0.4, stall_timeout_s=5, guard=SsrfGuard(("127.0.0.1",)))
        assert time.monotonic() - start_s < 2
        assert caught.value.is_retryable


def test_abort_handle_ends_a_fetch_at_once() -> None:
    with trickling(STARTS["headers"], pause_s=60) as url:
        abort_handle = AbortHandle()
        threading.Timer(0.2, abort_handle.abort).start()
        start_s = time.monotonic()
        with pytest.raises(FetchFailed):
            fetch(url, guard=SsrfGuard(("127.0.0.1",)), abort_handle=abort_handle)
        assert time.monotonic() - start_s < 2


def test_body_of_a_redirect_is_not_read(server: LocalServer) -> None:
    start = f"HTTP/1.1 302 Found\r\nLocation: {server.url}/sound\r\nContent-Length: 99999999999\r\n\r\n"
    with trickling(start.encode()) as url, fetch(url, guard=SsrfGuard(("127.0.0.1",))) as file:
        assert file.read() == BODY


def test_announced_size_over_the_limit_is_refused() -> None:
    announced = b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n"
    with trickling(announced) as url, pytest.raises(AudioTooLarge, match="10 GiB, the limit is 1 MiB"):
        fetch(url, max_bytes=2**20, guard=SsrfGuard(("127.0.0.1",)))


def test_retryable_statuses(server: LocalServer) -> None:
    for status, is_worth in ((400, False), (451, False), (500, True), (503, True), (429, True)):
        with pytest.raises(FetchFailed) as caught:
            fetch(server.add("/status", statuses=[status]), guard=SsrfGuard((server.host,)))
        assert caught.value.is_retryable is is_worth
