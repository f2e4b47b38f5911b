"""Clients that send all kinds of requests to a server, in their own process, until they are told to stop.

`python -m choral.bench.mixed_clients` reads commands as lines of JSON and replies to each with the counts so far;
`MixedClients` is the parent's side. All clients take files from one cycle, longer than the engine's cache holds.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

from choral.bench.clips import AudioClip, noisy
from choral.bench.http_client import ApiClient, When
from choral.bench.synthetic_audio import AUDIO_FORMATS, write_samples
from choral.errors import EngineError

HOT = {"temperature": "0.4"}
GOOD: tuple[dict[str, str], ...] = (
    {},
    HOT,
    {"response_format": "text"},
    {"response_format": "srt"},
    {"response_format": "vtt"},
    {"response_format": "verbose_json", "timestamp_granularities[]": "word"},
    {"stream": "true"},
    {"stream": "true", "priority": "batch"},
    {"mode": "batched", "vad": "true"},
)
BAD: tuple[tuple[str, bytes], ...] = (
    ("empty.mp3", b""),
    ("notes.mp3", b"Dear diary, " * 500),
    ("zero.wav", bytes(9999)),
)
LEAVES = get_args(When)
SHARE_BAD, SHARE_GONE = 0.10, 0.10
LEAVES_WITHIN_S = 1.0
AFTER_FAILURE_S = 0.5  # a server that is gone is not asked thousands of times
WRONG_INPUT = 400


@dataclasses.dataclass(frozen=True)
class ClientCounts:
    n_good: int = 0  # answered as they should be
    n_gone: int = 0  # clients that left
    n_bad: int = 0  # refused as they should be
    n_bad_taken: int = 0  # answered with something else
    n_changed: int = 0  # texts that differ from what the same request got before
    failures: tuple[str, ...] = ()  # of good requests, why


def write_mix(sounds: Sequence[AudioClip], folder: Path, n_files: int) -> list[Path]:
    """The sounds again and again, each time with other noise and in another format."""
    folder.mkdir()
    paths = []
    for index, sound in zip(range(n_files), itertools.cycle(sounds)):
        form = AUDIO_FORMATS[index % len(AUDIO_FORMATS)]
        paths.append(folder / f"{index:05d}.{form.suffix}")
        write_samples(paths[-1], form, noisy(sound.samples, (1, index)))
    return paths


class MixedClients:
    def __init__(self, url: str, files: Sequence[Path], n_clients: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "choral.bench.mixed_clients"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._ask({"url": url, "files": [str(path) for path in files], "n_clients": n_clients})

    def warm_up(self) -> None:
        """A request of several slots from each client, then every file once: what fills up is full then."""
        self._ask("warm up")

    def start(self) -> None:
        self._ask("start")

    def stop(self) -> None:
        """When all have ended what they were at."""
        self._ask("stop")

    def tally(self) -> ClientCounts:
        return self._ask("tally")

    def __enter__(self) -> MixedClients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, order: object) -> ClientCounts:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise EngineError("the process of the clients ended: see above")
        fields = json.loads(line)
        return ClientCounts(**{**fields, "failures": tuple(fields["failures"])})


class ClientThreads:
    """The child's side: a thread for each client."""

    def __init__(self, url: str, files: Sequence[str], n_clients: int) -> None:
        self._url, self._n_clients = url, n_clients
        self._files = [Path(file) for file in files]
        self._n_files_sent = 0
        self._lock = threading.Lock()
        self._tally = ClientCounts()
        self._texts: dict[tuple[str, ...], str] = {}
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def tally(self) -> ClientCounts:
        with self._lock:
            return self._tally

    def do(self, order: str) -> None:
        match order:
            case "warm up":
                self._begin(self._fill_all)
                self._join()
            case "start":
                self._begin(self._until_over)
            case "stop":
                self._is_over.set()
                self._join()

    def _begin(self, work: Callable[[ApiClient, random.Random], None]) -> None:
        def run(number: int) -> None:
            caller = ApiClient(self._url)
            try:
                work(caller, random.Random(number))
            finally:
                caller.close()

        self._threads = [threading.Thread(target=run, args=(number,)) for number in range(self._n_clients)]
        for thread in self._threads:
            thread.start()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _fill_all(self, caller: ApiClient, chance: random.Random) -> None:
        self._good(caller, HOT)
        while self._n_files_sent < len(self._files):
            self._good(caller, {})

    def _until_over(self, caller: ApiClient, chance: random.Random) -> None:
        while not self._is_over.is_set():
            draw = chance.random()
            if draw < SHARE_BAD:
                self._bad(caller, *chance.choice(BAD))
            elif draw < SHARE_BAD + SHARE_GONE:
                self._leave(caller, chance)
            else:
                self._good(caller, chance.choice(GOOD))

    def _good(self, caller: ApiClient, fields: dict[str, str]) -> None:
        path = self._file()
        try:
            answer = caller.send(path.name, path.read_bytes(), fields)
            if answer.status != 200:
                raise EngineError(f"{answer.status}: {answer.text[:200]}")
            text = text_of(answer.text, fields)
            if not text:
                raise EngineError(f"{path.name} with {fields} has no text")
        except (EngineError, OSError, ValueError) as error:
            self._add(f"{type(error).__name__}: {error}")
            self._is_over.wait(AFTER_FAILURE_S)
            return
        with self._lock:
            before = self._texts.setdefault((path.name, *fields.values()), text)
        self._add(n_good=1, n_changed=int(before != text))

    def _bad(self, caller: ApiClient, name: str, audio: bytes) -> None:
        try:
            status = caller.send(name, audio, {}).status
        except OSError:
            status = 0
        self._add(n_bad=int(status == WRONG_INPUT), n_bad_taken=int(status != WRONG_INPUT))

    def _leave(self, caller: ApiClient, chance: random.Random) -> None:
        path = self._file()
        caller.leave(path.name, path.read_bytes(), chance.choice(LEAVES), chance.uniform(0, LEAVES_WITHIN_S))
        self._add(n_gone=1)

    def _file(self) -> Path:
        with self._lock:
            self._n_files_sent += 1
            return self._files[self._n_files_sent % len(self._files)]

    def _add(self, *failures: str, **counts: int) -> None:
        with self._lock:
            sums: dict[str, Any] = {name: getattr(self._tally, name) + count for name, count in counts.items()}
            self._tally = dataclasses.replace(self._tally, failures=(*self._tally.failures, *failures), **sums)


def text_of(answer: str, fields: dict[str, str]) -> str:
    """The words in an answer of any format, without what surrounds them."""
    if "stream" in fields:
        return answer
    match fields.get("response_format", "json"):
        case "json" | "verbose_json":
            return str(json.loads(answer)["text"])
        case "srt" | "vtt":
            return " ".join(line for line in answer.splitlines() if line and not re.match(r"WEBVTT|\d+$|.*-->", line))
        case _:
            return answer.strip()


def main() -> None:
    clients = ClientThreads(**json.loads(sys.stdin.readline()))
    print(json.dumps(dataclasses.asdict(clients.tally)), flush=True)
    for line in sys.stdin:
        clients.do(json.loads(line))
        print(json.dumps(dataclasses.asdict(clients.tally)), flush=True)


if __name__ == "__main__":
    main()
