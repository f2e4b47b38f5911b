"""Both ends of the comparison, each in a process of its own: callers of a server, or an engine and its callers.

`python -m choral.bench.endpoints` is told what it is in a first line of JSON; every line after it is a round of
requests, answered with a line. Each caller sends its next request when its last one is answered.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from choral.api import load
from choral.bench.clips import AudioFile
from choral.bench.http_client import ApiClient
from choral.bench.load_generator import send_all
from choral.config import EngineSettings
from choral.errors import ChoralError, EngineError
from choral.types import TranscribeOptions

CLOSING_S = 10.0
STREAM_EVERY = 2  # of the requests to the server, one in so many is a stream


@dataclasses.dataclass(frozen=True)
class EndpointSpec:
    """Callers of the server at `url`, or an engine where there is none."""

    url: str | None
    model: str | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EndpointRound:
    texts: tuple[str, ...]
    latencies_s: tuple[float, ...]
    first_texts_s: tuple[float, ...]  # of those that were streams
    failures: tuple[str, ...]
    wall_s: float


class Endpoint:
    """The parent's side."""

    def __init__(self, spec: EndpointSpec) -> None:
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "choral.bench.endpoints"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            encoding="utf-8",
        )
        try:
            self._ask(dataclasses.asdict(spec))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, requests: Sequence[AudioFile], n_callers: int) -> EndpointRound:
        order = {"requests": [dataclasses.asdict(request) for request in requests], "n_callers": n_callers}
        fields = self._ask(order)
        names = ("texts", "latencies_s", "first_texts_s", "failures")
        return EndpointRound(wall_s=fields["wall_s"], **{name: tuple(fields[name]) for name in names})

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(question), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._said.seek(0)
            lines = self._said.read().strip().splitlines()
            raise EngineError(lines[-1] if lines else "a process of the measurement ended without a word")
        return json.loads(line)


class Http:
    def __init__(self, url: str) -> None:
        self._url = url
        self._own = threading.local()

    def __call__(self, request: AudioFile, is_stream: bool) -> tuple[str, float | None]:
        path = Path(request.path)
        fields = {"language": request.language} if request.language else {}
        if is_stream:
            fields["stream"] = "true"
        if not hasattr(self._own, "caller"):
            self._own.caller = ApiClient(self._url)
        answer = self._own.caller.send(path.name, path.read_bytes(), fields)
        if answer.status != 200:
            raise EngineError(f"{answer.status}: {answer.text[:200]}")
        return (answer.text if is_stream else json.loads(answer.text)["text"]), answer.first_text_s


class InProcess:
    def __init__(self, spec: EndpointSpec) -> None:
        self._model = load(spec.model, settings=EngineSettings(**spec.settings))

    def __call__(self, request: AudioFile, is_stream: bool) -> tuple[str, float | None]:
        text = self._model.transcribe(request.path, TranscribeOptions(language=request.language)).text
        return text.strip(), None


def run(transcribe: Callable[[AudioFile, bool], tuple[str, float | None]], order: Any) -> EndpointRound:
    firsts_s: list[float] = []
    failures: list[str] = []

    def one(sent: tuple[int, AudioFile]) -> str:
        index, request = sent
        try:
            text, first_s = transcribe(request, index % STREAM_EVERY == 0)
        except (ChoralError, OSError) as error:
            failures.append(str(error))
            return ""
        if first_s is not None:
            firsts_s.append(first_s)
        return text

    requests = [AudioFile(**fields) for fields in order["requests"]]
    measured = send_all(one, list(enumerate(requests)), order["n_callers"])
    return EndpointRound(measured.texts, measured.latencies_s, tuple(firsts_s), tuple(failures), measured.wall_s)


def main() -> None:
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print
    spec = EndpointSpec(**json.loads(sys.stdin.readline()))
    end = Http(spec.url) if spec.url is not None else InProcess(spec)
    print("{}", file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(run(end, json.loads(line)))), file=replies, flush=True)


if __name__ == "__main__":
    main()
