"""One caller of the server: a connection that is kept, forms as clients send them, answers whole or as they come."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

ROUTE = "/v1/audio/transcriptions"
KEY = "CHORAL_API_KEY"
TIMEOUT_S = 600.0
MODEL = "whisper-1"
When = Literal["sending", "waiting", "reading"]


@dataclass(frozen=True)
class HttpReply:
    status: int
    text: str  # of a stream, that of its last event
    first_text_s: float | None  # of a stream
    spent_s: float


class ApiClient:
    """For one thread. A connection that broke is an OSError, and is made anew by the next call."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._connection: http.client.HTTPConnection | None = None

    def send(self, name: str, audio: bytes, fields: Mapping[str, str]) -> HttpReply:
        """The body of a whole answer is its text as it came."""
        started_s = time.perf_counter()
        with self._open() as connection:
            body, headers = form(name, audio, fields)
            connection.request("POST", ROUTE, body, headers)
            response = connection.getresponse()
            if response.getheader("content-type", "").startswith("text/event-stream"):
                text, first_s = read_events(response)
                return HttpReply(response.status, text, first_s - started_s, time.perf_counter() - started_s)
            answer = response.read().decode()
            return HttpReply(response.status, answer, None, time.perf_counter() - started_s)

    def leave(self, name: str, audio: bytes, when: When, waited_s: float) -> None:
        """As a client that goes away: half-way through sending, while it waits, or after the first of a stream."""
        body, headers = form(name, audio, {"stream": "true"} if when == "reading" else {})
        with contextlib.suppress(OSError), self._open() as connection:
            if when == "sending":
                connection.request("POST", ROUTE, headers={**headers, "Content-Length": str(len(body))})
                connection.send(body[: len(body) // 2])
            else:
                connection.request("POST", ROUTE, body, headers)
            time.sleep(waited_s)
            if when == "reading":
                connection.getresponse().readline()
        self.close()

    def look(self, path: str) -> tuple[int, float]:
        """The status of what is there, and the seconds until it was answered."""
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
            raise ConnectionError(f"half an answer: {error!r}") from error
        except BaseException:
            self.close()
            raise


def status_of(url: str, path: str) -> int:
    """0: nobody answers."""
    caller = ApiClient(url)
    try:
        return caller.look(path)[0]
    except OSError:
        return 0
    finally:
        caller.close()


def form(name: str, audio: bytes, fields: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """The body of a request with a file, and its headers."""
    boundary = secrets.token_hex(16)
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in {"model": MODEL, **fields}.items()
    ]
    parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n')
    body = "".join(parts).encode() + audio + f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    if key := os.environ.get(KEY):
        headers["Authorization"] = f"Bearer {key}"
    return body, headers


def read_events(response: http.client.HTTPResponse) -> tuple[str, float]:
    """The whole text, and when the first of it came; a stream without its last event has none."""
    text, first_s = "", 0.0
    while line := response.readline():
        first_s = first_s or time.perf_counter()
        data = line.decode().removeprefix("data: ").strip()
        if data.startswith("{"):
            event = json.loads(data)
            text = event["text"] if event["type"] == "transcript.text.done" else text
    return text, first_s
