"""Attacks over HTTP: forms, headers, uploads and connections."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from attack_probe import ProbeReport, memory_bytes, under_attack
from serve_process import ServeProcess, running

ROUTES = ("/v1/audio/transcriptions", "/v1/jobs")
URLENCODED = {"content-type": "application/x-www-form-urlencoded"}
SENTENCE = "ask not what your country can do for you"
Attacked = Callable[..., AbstractContextManager[ProbeReport]]


def refusal(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error in OpenAI's shape."""
    assert answer.status_code == status, answer.text[:500]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def multipart(charset: str, *parts: tuple[str, bytes]) -> dict[str, Any]:
    """Body and headers of a form that declares this character set."""
    body = [b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), v) for name, v in parts]
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    return {"content": b"".join(body) + b"--x--\r\n", "headers": {"content-type": kind}}


def connect(server: ServeProcess) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def upload_head(route: str, length: int = 10**6) -> bytes:
    lines = (
        f"POST {route} HTTP/1.1", "Host: localhost", f"Content-Length: {length}",
        "Content-Type: multipart/form-data; boundary=x", "", "--x",
        'Content-Disposition: form-data; name="file"; filename="a.wav"', "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode()


# --- forms ---


@pytest.mark.parametrize("route", ROUTES)
def test_costly_character_sets_are_refused_at_once(http: httpx.Client, attacked: Attacked, route: str) -> None:
    with attacked():
        for charset in ("punycode", "utf-7", "idna", "undefined", "rot13", "utf-16", "unicode_escape", "base64", "no"):
            answer = http.post(route, **multipart(charset, ("prompt", b"a-" + b"9" * 200_000)))
            assert "utf-8" in refusal(answer, 400)["message"]
            assert answer.elapsed.total_seconds() < 1


def test_usual_character_sets_are_read(http: httpx.Client) -> None:
    for charset, text in (("utf-8", "é".encode()), ("UTF8", "é".encode()), ("iso-8859-1", b"\xe9"), ("us-ascii", b"e")):
        error = refusal(http.post(ROUTES[0], **multipart(charset, ("model", text))), 400)
        assert (error["param"], error["code"]) == ("file", "missing_required_parameter")


@pytest.mark.parametrize("route", ROUTES)
def test_large_forms_without_files_do_not_grow_the_memory(
    server: ServeProcess, http: httpx.Client, attacked: Attacked, route: str
) -> None:
    before = memory_bytes(server)
    with attacked():
        for body in (b"prompt=" + b"a" * 60 * 2**20, b"a=1&" * 5 * 2**20, b"&" * 10 * 2**20):
            assert "256" in refusal(http.post(route, content=body, headers=URLENCODED), 413)["message"]
        encoded = b"prompt=" + b"%41" * 80_000
        assert http.post(route, content=encoded, headers=URLENCODED).status_code == 400
        many = b"&".join(b"f%d=1" % i for i in range(10_000))
        assert "256 fields" in refusal(http.post(route, content=many, headers=URLENCODED), 400)["message"]
        texts = [(f"f{i}", b"a" * 250_000) for i in range(60)]
        assert "256" in refusal(http.post(route, **multipart("utf-8", *texts)), 413)["message"]
    assert memory_bytes(server) - before < 50 * 2**20


def test_json_with_many_invalid_values_is_refused_at_once(http: httpx.Client, attacked: Attacked) -> None:
    with attacked():
        for fields in ({f"k{i}": 1 for i in range(18_000)}, {"temperature": ["a"] * 40_000}):
            answer = http.post(
                "/v1/jobs", content=json.dumps(fields).encode(), headers={"content-type": "application/json"}
            )
            assert len(refusal(answer, 400)["message"]) < 2000
        big = http.post("/v1/jobs", content=b'{"url": "' + b"a" * 300_000, headers={"content-type": "application/json"})
        assert "256 KiB" in refusal(big, 413)["message"]


@pytest.mark.parametrize("text", [r"\ud800", r"\udfff\ud800", r"\u0000"])
def test_unusual_characters_in_json_are_refused(http: httpx.Client, text: str) -> None:
    for body in (f'{{"url": "http://127.0.0.1/{text}"}}', f'{{"{text}": 1}}', f'{{"language": "{text}"}}'):
        answer = http.post("/v1/jobs", content=body.encode(), headers={"content-type": "application/json"})
        assert answer.status_code in (202, 400), answer.text


def test_lone_surrogates_in_forms_are_refused_or_text(http: httpx.Client) -> None:
    surrogate = b"\xed\xa0\x80"
    for parts in ((("language", surrogate),), (("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), b"1"),)):
        refusal(http.post(ROUTES[0], **multipart("utf-8", *parts)), 400)
    refusal(http.post(ROUTES[0], content=b"language=%ED%A0%80&model=%ff", headers=URLENCODED), 400)
    assert http.get("/v1/models/%ED%A0%80").status_code == 404
    assert http.get("/v1/jobs/%ED%A0%80").status_code in (400, 404)
    assert http.get("/page/%ED%A0%80").status_code == 404


def test_numbers_with_thousands_of_digits_are_refused(server: ServeProcess, http: httpx.Client) -> None:
    digits = "9" * 5000
    assert refusal(http.get(f"/v1/jobs?limit={digits}"), 400)["param"] == "limit"
    refusal(http.get("/v1/jobs/1/events", headers={"last-event-id": digits}), 400)
    for value in ("9" * 401, digits, f"-{digits}", "1e999999"):
        for field in ("seed", "beam_size", "temperature", "clip_timestamps"):
            assert (
                refusal(http.post("/v1/jobs", data={field: value, "url": "http://127.0.0.1/"}), 400)["param"] == field
            )
    with connect(server) as connection:
        connection.sendall(f"POST {ROUTES[0]} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {digits}\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


# --- disk ---


@contextmanager
def full_disk(server: ServeProcess) -> Iterator[None]:
    """The server may not write files beyond 1.5 MB: the system refuses as it does on a full disk."""
    before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1_500_000, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("route", ROUTES)
def test_upload_with_a_full_temporary_disk_is_a_507(
    server: ServeProcess, http: httpx.Client, attacked: Attacked, route: str
) -> None:
    with attacked(), full_disk(server):
        answer = http.post(route, data={}, files={"file": ("a.wav", bytes(5 * 2**20))})
        error = refusal(answer, 507)
        assert "TMPDIR" in error["message"]
        assert error["code"] == "storage_error"


# --- connections ---


@pytest.fixture(scope="module")
def small(tiny_en_pt: Path) -> Iterator[ServeProcess]:
    """A server with few places."""
    with running(
        "--model", tiny_en_pt, "--processes", 1, "--threads", 1, "--uploads", 4, "--connections", 32,
        "--response-stall-s", 2,
    ) as started:  # fmt: skip
        yield started


def test_slow_uploads_give_up_their_places(small: ServeProcess, jfk: Path) -> None:
    """Below the stall timeout, so that only the rate tells them from others."""
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(small)) for _ in range(4)]
        for connection in slow:
            connection.sendall(upload_head(ROUTES[0]))
        deadline_s = time.monotonic() + 6
        while time.monotonic() < deadline_s:
            for connection in slow:
                connection.sendall(b"0")
            time.sleep(0.5)
        with under_attack(small, jfk):  # good requests are served, one after the other
            for connection in slow[1:]:
                connection.sendall(b"0")
            time.sleep(1)
        answers = [connection for connection in slow if _is_readable(connection)]
        assert len(answers) == 1  # one place was enough
        assert b"slower than 16,384 bytes/s" in answers[0].recv(4096)


def _is_readable(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(30)


def test_idle_connections_make_room_for_new_ones(small: ServeProcess, jfk: Path) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(small)) for _ in range(100)]
        with under_attack(small, jfk):
            for connection in idle[-20:]:
                connection.sendall(b"GET /health/live HTTP/1.1\r\nHost:")
            time.sleep(1)
        assert idle[0].recv(1) == b""


def test_unread_responses_are_ended(small: ServeProcess, jfk: Path) -> None:
    host, port = small.url.removeprefix("http://").split(":")
    n_files = small.metric("process_open_fds")
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect((host, int(port)))
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 80)
        with under_attack(small, jfk):
            time.sleep(1)
        wait_for_files(small, n_files + 2)


def test_endless_bodies_are_ended(small: ServeProcess, jfk: Path) -> None:
    """The response does not need the body, and uvicorn would read it forever."""
    request = b"POST /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n"
    with connect(small) as connection:
        connection.sendall(request)
        with under_attack(small, jfk), pytest.raises(ConnectionError):
            send_slowly(connection)


def send_slowly(connection: socket.socket) -> None:
    for _ in range(1000):
        connection.sendall(b"0")
        time.sleep(0.01)


def wait_for_files(server: ServeProcess, n_files: float) -> None:
    deadline_s = time.monotonic() + 15
    while server.metric("process_open_fds") > n_files:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def test_malformed_chunks_are_a_400_without_a_traceback(server: ServeProcess, jfk: Path) -> None:
    """uvicorn responds to them itself, and the route that reads the body must not respond too."""
    head = f"POST {ROUTES[0]} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    form = "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    for chunk in (b"-1\r\n", b"zz\r\n", b"3\r\nabcdef"):
        with connect(server) as connection:
            connection.sendall(f"{head}{form}".encode() + b"5\r\n--x\r\n\r\n")
            time.sleep(0.1)  # the route is reading
            connection.sendall(chunk)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
    with connect(server) as connection:  # the response, a 415, is sent before the chunk arrives
        connection.sendall(f"{head}\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 415 ")
        connection.sendall(b"zz\r\n")
        while connection.recv(4096):  # until the server closes the connection
            pass
    with under_attack(server, jfk):
        time.sleep(0.5)
    assert "Traceback" not in server.log
