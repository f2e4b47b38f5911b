"""Clients that send all kinds of requests to a server, in their own process, until the parent stops them.

`python -m choral.bench.mixed_clients` replies to every command with the counts so far; `MixedClients` is the parent's
side. All clients take files from one cycle, longer than the engine's cache holds.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from choral.bench.clips import AudioClip, noisy
from choral.bench.http_client import ApiClient, DisconnectPoint
from choral.bench.json_process import JsonProcess, serve_messages
from choral.bench.synthetic_audio import AUDIO_FORMATS, write_samples
from choral.errors import EngineError

SAMPLED = {"temperature": "0.4"}
VALID_FIELDS: tuple[dict[str, str], ...] = (
    {},
    SAMPLED,
    {"response_format": "text"},
    {"response_format": "srt"},
    {"response_format": "vtt"},
    {"response_format": "verbose_json", "timestamp_granularities[]": "word"},
    {"stream": "true"},
    {"stream": "true", "priority": "batch"},
    {"mode": "batched", "vad": "true"},
)
INVALID_FILES: tuple[tuple[str, bytes], ...] = (
    ("empty.mp3", b""),
    ("notes.mp3", b"Dear diary, " * 500),
    ("zero.wav", bytes(9999)),
)
INVALID_SHARE, DISCONNECT_SHARE = 0.10, 0.10
MAX_DISCONNECT_S = 1.0
PAUSE_AFTER_FAILURE_S = 0.5  # do not flood a server that is down
BAD_REQUEST = 400


@dataclasses.dataclass(frozen=True)
class ClientCounts:
    n_good: int = 0  # valid requests with a text
    n_abandoned: int = 0  # requests that the client abandoned
    n_bad: int = 0  # invalid requests that were rejected with 400
    n_bad_taken: int = 0  # invalid requests with another response
    n_changed: int = 0  # texts that differ from the first response to the same request
    failures: tuple[str, ...] = ()  # valid requests that failed, and why


def write_files(clips: Sequence[AudioClip], folder: Path, n_files: int) -> list[Path]:
    """The clips in turn, each time with different noise and in a different format."""
    folder.mkdir()
    paths = []
    for index, clip in zip(range(n_files), itertools.cycle(clips)):
        form = AUDIO_FORMATS[index % len(AUDIO_FORMATS)]
        paths.append(folder / f"{index:05d}.{form.suffix}")
        write_samples(paths[-1], form, noisy(clip.samples, (1, index)))
    return paths


class MixedClients(JsonProcess):
    def __init__(self, url: str, files: Sequence[Path], n_clients: int) -> None:
        message = {"url": url, "files": [str(path) for path in files], "n_clients": n_clients}
        super().__init__("choral.bench.mixed_clients", message)

    def command(self, command: str) -> ClientCounts:
        """`warm up` fills all slots and sends every file once; `stop` waits for the requests in progress."""
        fields = self.request(command)
        return ClientCounts(**{**fields, "failures": tuple(fields["failures"])})


class ClientThreads:
    """The child's side: one thread for each client."""

    def __init__(self, url: str, files: Sequence[str], n_clients: int) -> None:
        self._url, self._n_clients = url, n_clients
        self._files = [Path(file) for file in files]
        self._n_files_sent = 0
        self._lock = threading.Lock()
        self._counts = ClientCounts()
        self._texts: dict[tuple[str, ...], str] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def run_command(self, command: str) -> ClientCounts:
        match command:
            case "warm up":
                self._start(self._warm_up)
                self._join()
            case "start":
                self._start(self._send_until_stopped)
            case "stop":
                self._stop.set()
                self._join()
        with self._lock:
            return self._counts

    def _start(self, work: Callable[[ApiClient, random.Random], None]) -> None:
        def run(number: int) -> None:
            client = ApiClient(self._url)
            try:
                work(client, random.Random(number))
            finally:
                client.close()

        self._threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(self._n_clients)]
        for thread in self._threads:
            thread.start()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _warm_up(self, client: ApiClient, draw: random.Random) -> None:
        self._send_valid(client, SAMPLED)  # takes several slots
        while self._n_files_sent < len(self._files):
            self._send_valid(client, {})

    def _send_until_stopped(self, client: ApiClient, draw: random.Random) -> None:
        while not self._stop.is_set():
            kind = draw.random()
            if kind < INVALID_SHARE:
                self._send_invalid(client, *draw.choice(INVALID_FILES))
            elif kind < INVALID_SHARE + DISCONNECT_SHARE:
                self._disconnect(client, draw)
            else:
                self._send_valid(client, draw.choice(VALID_FIELDS))

    def _send_valid(self, client: ApiClient, fields: dict[str, str]) -> None:
        path = self._next_file()
        try:
            reply = client.send(path.name, path.read_bytes(), fields)
            if reply.status != 200:
                raise EngineError(f"{reply.status}: {reply.text[:200]}")
            text = extract_text(reply.text, fields)
            if not text:
                raise EngineError(f"{path.name} with {fields} has no text")
        except (EngineError, OSError, ValueError) as error:
            self._count(f"{type(error).__name__}: {error}")
            self._stop.wait(PAUSE_AFTER_FAILURE_S)
            return
        with self._lock:
            first_text = self._texts.setdefault((path.name, *fields.values()), text)
        self._count(n_good=1, n_changed=int(first_text != text))

    def _send_invalid(self, client: ApiClient, name: str, audio: bytes) -> None:
        try:
            status = client.send(name, audio, {}).status
        except OSError:
            status = 0
        self._count(n_bad=int(status == BAD_REQUEST), n_bad_taken=int(status != BAD_REQUEST))

    def _disconnect(self, client: ApiClient, draw: random.Random) -> None:
        path = self._next_file()
        when = draw.choice(get_args(DisconnectPoint))
        client.disconnect(path.name, path.read_bytes(), when, draw.uniform(0, MAX_DISCONNECT_S))
        self._count(n_abandoned=1)

    def _next_file(self) -> Path:
        with self._lock:
            self._n_files_sent += 1
            return self._files[self._n_files_sent % len(self._files)]

    def _count(self, *failures: str, **counts: int) -> None:
        with self._lock:
            sums: dict[str, Any] = {name: getattr(self._counts, name) + count for name, count in counts.items()}
            self._counts = dataclasses.replace(self._counts, failures=(*self._counts.failures, *failures), **sums)


def extract_text(body: str, fields: dict[str, str]) -> str:
    """The spoken words in a response of any format."""
    if "stream" in fields:
        return body
    match fields.get("response_format", "json"):
        case "json" | "verbose_json":
            return str(json.loads(body)["text"])
        case "srt" | "vtt":
            return " ".join(line for line in body.splitlines() if line and not re.match(r"WEBVTT|\d+$|.*-->", line))
        case _:
            return body.strip()


if __name__ == "__main__":
    serve_messages(lambda message: ClientThreads(**message).run_command)
