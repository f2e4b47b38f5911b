"""A client of the server with a persistent connection: sends files as forms, reads whole or streamed responses."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

ROUTE = "/v1/audio/transcriptions"
KEY = "CHORAL_API_KEY"
TIMEOUT_S = 600.0
PROBE_PATH, PROBE_EVERY_S = "/health/live", 0.05
DisconnectPoint = Literal["sending", "waiting", "reading"]


@dataclass(frozen=True)
class HttpReply:
    status: int
    text: str  # the body; of a stream, the text of its last event
    first_text_s: float | None  # of a stream
    spent_s: float


class ApiClient:
    """For one thread. A broken connection is an OSError; the next call opens another."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._connection: http.client.HTTPConnection | None = None

    def send(self, name: str, audio: bytes, fields: Mapping[str, str]) -> HttpReply:
        started_s = time.perf_counter()
        with self._open() as connection:
            body, headers = make_form(name, audio, fields)
            connection.request("POST", ROUTE, body, headers)
            response = connection.getresponse()
            first_s: float | None = None
            if response.getheader("content-type", "").startswith("text/event-stream"):
                text, first_s = read_events(response)
            else:
                text = response.read().decode()
        first_text_s = None if first_s is None else first_s - started_s
        return HttpReply(response.status, text, first_text_s, time.perf_counter() - started_s)

    def disconnect(self, name: str, audio: bytes, when: DisconnectPoint, delay_s: float) -> None:
        """Close the connection halfway through the request, before the response, or after a stream's first line."""
        body, headers = make_form(name, audio, {"stream": "true"} if when == "reading" else {})
        with contextlib.suppress(OSError), self._open() as connection:
            if when == "sending":
                connection.request("POST", ROUTE, headers={**headers, "Content-Length": str(len(body))})
                connection.send(body[: len(body) // 2])
            else:
                connection.request("POST", ROUTE, body, headers)
            time.sleep(delay_s)
            if when == "reading":
                connection.getresponse().readline()
        self.close()

    def get(self, path: str) -> tuple[int, float]:
        """The status, and the seconds until the response was read."""
        started_s = time.perf_counter()
        with self._open() as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
        return response.status, time.perf_counter() - started_s

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _open(self) -> Iterator[http.client.HTTPConnection]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)
        try:
            yield self._connection
        except http.client.HTTPException as error:
            self.close()
            raise ConnectionError(f"the response is incomplete: {error!r}") from error
        except BaseException:
            self.close()
            raise


class HealthProbe:
    """Requests /health/live every 50 ms from its own thread between entry and exit.

    `late_s` is how late the thread itself woke each time: the machine's part of the latencies.
    """

    def __init__(self, url: str) -> None:
        self.latencies_s: list[float] = []
        self.late_s: list[float] = []
        self.n_failures = 0
        self._client = ApiClient(url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="choral-health-probe", daemon=True)

    def __enter__(self) -> HealthProbe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        slept_s = time.perf_counter()
        while not self._stop.wait(PROBE_EVERY_S):
            self.late_s.append(time.perf_counter() - slept_s - PROBE_EVERY_S)
            try:
                status, spent_s = self._client.get(PROBE_PATH)
                self.latencies_s.append(spent_s)
                self.n_failures += status != 200
            except OSError:
                self.n_failures += 1
            slept_s = time.perf_counter()


def get_status(url: str, path: str) -> int:
    """0: no response."""
    with contextlib.closing(ApiClient(url)) as client, contextlib.suppress(OSError):
        return client.get(path)[0]
    return 0


def make_form(name: str, audio: bytes, fields: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """The multipart body and the headers of a request with a file."""
    boundary = secrets.token_hex(16)
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in {"model": "whisper-1", **fields}.items()
    ]
    parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n')
    body = "".join(parts).encode() + audio + f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    if key := os.environ.get(KEY):
        headers["Authorization"] = f"Bearer {key}"
    return body, headers


def read_events(response: http.client.HTTPResponse) -> tuple[str, float]:
    """The whole text, and when the first line arrived; a stream without its last event has no text."""
    text, first_s = "", 0.0
    while line := response.readline():
        first_s = first_s or time.perf_counter()
        data = line.decode().removeprefix("data: ").strip()
        if data.startswith("{"):
            event = json.loads(data)
            text = event["text"] if event["type"] == "transcript.text.done" else text
    return text, first_s
