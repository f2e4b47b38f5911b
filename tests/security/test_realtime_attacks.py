"""Attacks on realtime sessions: clients that never read, floods of frames and events, and unpaid audio."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from attack_probe import ProbeReport, memory_bytes
from choral.server.api_keys import ApiKey, hash_secret, new_secret, write_keys
from realtime_client import FORMATS, close_code, connected, silence
from serve_process import ServeProcess, running

MIB = 2**20
SESSIONS, SEND_S = 8, 2
FREED_WITHIN_S = 15.0
BLOCKED_S = 3.0  # a send that takes longer shows that the server does not read
BAD_EVENT = json.dumps({"type": "no.such.event", "event_id": "x" * 512})
Attacked = Callable[..., AbstractContextManager[ProbeReport]]


@pytest.fixture(scope="module")
def server(tiny_en_pt: Path) -> Iterator[ServeProcess]:
    with running(
        "--model", tiny_en_pt, "--realtime-sessions", SESSIONS, "--realtime-send-s", SEND_S,
        "--processes", 1, "--threads", 1,
    ) as started:  # fmt: skip
        yield started


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example:8000"}, {"Sec-Fetch-Site": "same-origin"}, {}])
def test_rebound_host_names_are_refused(server: ServeProcess, headers: dict[str, str]) -> None:
    """A page whose name now resolves to this server: its requests have that name as their Host."""
    with closing(handshake(server.url, {"Host": "evil.example:8000", **headers})) as connection:
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"host_not_allowed" in answer


def handshake(url: str, headers: dict[str, str]) -> socket.socket:
    """A bare socket on which the request for a session was sent; its receive buffer is small."""
    address = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(BLOCKED_S)
    connection.connect((address.hostname, address.port))
    headers = {
        "Host": address.netloc,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
        **headers,
    }
    lines = ["GET /v1/realtime?intent=transcription HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


class SilentReader:
    """A WebSocket client on a bare socket that never reads after its handshake."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self._socket = handshake(url, headers or {})
        assert self._socket.recv(12) == b"HTTP/1.1 101"

    def flood(self, first: bytes, data: bytes, n_times: int) -> None:
        """Send `first`, then `data` so many times, until the server closes the connection or does not read either."""
        with contextlib.suppress(OSError):
            self._socket.sendall(first)
            for _ in range(n_times):
                self._socket.sendall(data)

    def close(self) -> None:
        self._socket.close()


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


def flood(server: ServeProcess, data: bytes, n_times: int, *, first: bytes = b"") -> None:
    """Send the data so many times from each of as many silent readers as there are places; then wait for the places."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(SilentReader(server.url))) for _ in range(SESSIONS)]
        threads = [threading.Thread(target=client.flood, args=(first, data, n_times)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for_free_places(server)


def wait_for_free_places(server: ServeProcess) -> None:
    deadline_s = time.monotonic() + FREED_WITHIN_S
    while server.metric("choral_realtime_sessions_open"):
        assert time.monotonic() < deadline_s, "sessions are still open"
        time.sleep(0.1)


@contextmanager
def limited_growth(server: ServeProcess, max_bytes: int) -> Iterator[None]:
    """The server's memory never grows by more, sampled while the block runs."""
    before, peak, stop = memory_bytes(server), [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.05):
            peak[0] = max(peak[0], memory_bytes(server))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield
    finally:
        stop.set()
        sampler.join()
    assert peak[0] - before <= max_bytes, f"the memory grew by {(peak[0] - before) / MIB:.0f} MiB"


FLOODS = {
    "bad events": (b"", frame(Opcode.TEXT, BAD_EVENT.encode()) * 80, 100),
    "pings": (b"", frame(Opcode.PING, bytes(125)) * 400, 500),
    "empty messages": (b"", frame(Opcode.TEXT) * 2_000, 100),
    "empty fragments": (frame(Opcode.TEXT, fin=False), frame(Opcode.CONT, fin=False) * 2_000, 500),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_floods_of_clients_that_never_read(server: ServeProcess, attacked: Attacked, kind: str) -> None:
    first, data, n_times = FLOODS[kind]
    with attacked(), limited_growth(server, 80 * MIB):
        flood(server, data, n_times, first=first)
    with connected(server.url) as client:
        client.configure()


JSON_BOMBS = {
    "lists": "[" + "[]," * (MIB // 3) + "[]]",
    "objects": "[" + "{}," * (MIB // 3) + "{}]",
    "numbers": '{"type": [' + "1e9," * (MIB // 4) + "1]}",
    "names": "{" + ",".join(f'"{n}":0' for n in range(MIB // 12)) + "}",
    "escapes": '{"type": "' + "\\/A" * (MIB // 3) + '"}',
    "digits": '{"type": 0.' + "1" * MIB + "}",
}


def test_json_bombs(server: ServeProcess, attacked: Attacked) -> None:
    """Messages of a megabyte that take long to parse, from every place at once."""

    def send_all() -> None:
        with connected(server.url) as client:
            for text in [*JSON_BOMBS.values()] * 3:
                client.connection.send(text)
                client.wait_for_error()

    with attacked(), limited_growth(server, 200 * MIB):
        run_threads([send_all] * SESSIONS)


def test_messages_of_the_largest_size(server: ServeProcess, attacked: Attacked) -> None:
    """Appends of 4 MiB from every place at once, faster than they are handled."""
    audio = base64.b64encode(bytes(3 * MIB - 100)).decode()
    n_messages = 5

    def send_all() -> None:
        with connected(server.url) as client:
            client.configure(format=FORMATS["pcm16"], turn_detection=None)
            for _ in range(n_messages):
                client.send("input_audio_buffer.append", audio=audio)
                client.send("input_audio_buffer.clear")
            for _ in range(n_messages):
                client.wait_for("input_audio_buffer.cleared")

    with attacked(), limited_growth(server, SESSIONS * 4 * 4 * MIB):
        run_threads([send_all] * SESSIONS)


def test_short_turns_that_wait_take_little_memory(server: ServeProcess, attacked: Attacked) -> None:
    """Commits after every 100 ms of audio: each turn needs a window of the engine."""

    def commit_all() -> None:
        with connected(server.url) as client:
            client.configure(format=FORMATS["pcmu"], turn_detection=None)
            audio = base64.b64encode(b"\xff" * 800).decode()
            for _ in range(1_500):
                client.send("input_audio_buffer.append", audio=audio)
                client.commit()

    with attacked(), limited_growth(server, 100 * MIB):
        run_threads([commit_all] * 4)
        wait_for_free_places(server)


def run_threads(calls: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()


KEYS = {name: new_secret() for name in ("short", "long", "slow")}


@pytest.fixture(scope="module")
def keyed_server(tiny_en_pt: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """Keys with three seconds of audio a day, or with one session at a time; only idle sessions end soon.

    Its sessions run in a process of their own.
    """
    folder = tmp_path_factory.mktemp("keyed")
    limits: dict[str, dict[str, Any]] = {
        "short": {"audio_minutes_per_day": 0.05},
        "long": {"audio_minutes_per_day": 0.05},
        "slow": {"parallel_requests": 1},
    }
    keys = [ApiKey(name=name, sha256=hash_secret(secret), **limits[name]) for name, secret in KEYS.items()]
    write_keys(folder / "keys.json", keys)
    with running(
        "--model", tiny_en_pt, "--api-keys-file", folder / "keys.json", "--data", folder, "--realtime-idle-s", 2,
        "--realtime-send-s", 600, "--realtime-processes", 1, "--processes", 1, "--threads", 1,
    ) as started:  # fmt: skip
        yield started


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


def test_idle_ends_a_session_whose_client_never_reads(keyed_server: ServeProcess) -> None:
    with closing(SilentReader(keyed_server.url, bearer("slow"))) as client:
        assert connect_status(keyed_server, "slow") == 429
        client.flood(*FLOODS["bad events"])
        wait_for_status(keyed_server, "slow", 101)


@pytest.mark.parametrize(("name", "duration_s"), [("short", 4.8), ("long", 10)])
def test_audio_over_the_limit_of_the_key_is_charged(keyed_server: ServeProcess, name: str, duration_s: float) -> None:
    """A short session ends before its first charge; a long one is over the limit with it."""
    with connected(keyed_server.url, additional_headers=bearer(name)) as client:
        client.configure(format=FORMATS["pcm16"])
        client.append_audio(silence(duration_s).tobytes())
        if name == "short":
            client.configure()  # answered once all audio is processed
        else:
            assert "limited to 0.05 minutes" in client.wait_for_error()["message"]
            assert close_code(client) == 1008
    wait_for_status(keyed_server, name, 429)  # charged once the server has seen that the client is gone


def wait_for_status(server: ServeProcess, name: str, status: int) -> None:
    """Connect with this key again and again, until the answer has this status."""
    deadline_s = time.monotonic() + FREED_WITHIN_S
    while connect_status(server, name) != status:
        assert time.monotonic() < deadline_s, f"connecting does not give {status}"
        time.sleep(0.1)


def connect_status(server: ServeProcess, name: str) -> int:
    try:
        with connected(server.url, additional_headers=bearer(name)):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code
