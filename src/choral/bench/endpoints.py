"""The two sides of `choral bench serve`, each in its own process: callers of a server, or an engine with its callers.

`python -m choral.bench.endpoints` takes an `EndpointSpec` first; every message after it is a round of requests.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from choral.api import load
from choral.bench.clips import AudioFile
from choral.bench.http_client import ApiClient
from choral.bench.json_process import JsonProcess, serve_messages
from choral.bench.load_generator import send_all
from choral.config import EngineSettings
from choral.errors import ChoralError, EngineError
from choral.types import TranscribeOptions

STREAM_EVERY = 2  # every second request to the server is a stream

Transcribe = Callable[[AudioFile, bool], tuple[str, float | None]]  # (file, is_stream) → text, time of the first text


@dataclasses.dataclass(frozen=True)
class EndpointSpec:
    """Callers of the server at `url`, or an engine if that is None."""

    url: str | None
    model: str | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EndpointRound:
    texts: tuple[str, ...]
    latencies_s: tuple[float, ...]
    first_texts_s: tuple[float, ...]  # of the streams
    failures: tuple[str, ...]
    wall_s: float


class Endpoint(JsonProcess):
    def __init__(self, spec: EndpointSpec) -> None:
        super().__init__("choral.bench.endpoints", dataclasses.asdict(spec))

    def run(self, files: Sequence[AudioFile], n_callers: int) -> EndpointRound:
        return EndpointRound(
            **self.request({"files": [dataclasses.asdict(file) for file in files], "n_callers": n_callers})
        )


def http_transcribe(url: str) -> Transcribe:
    local = threading.local()

    def transcribe(file: AudioFile, is_stream: bool) -> tuple[str, float | None]:
        path = Path(file.path)
        fields = {"language": file.language} if file.language else {}
        if is_stream:
            fields["stream"] = "true"
        if not hasattr(local, "client"):
            local.client = ApiClient(url)
        reply = local.client.send(path.name, path.read_bytes(), fields)
        if reply.status != 200:
            raise EngineError(f"{reply.status}: {reply.text[:200]}")
        return (reply.text if is_stream else json.loads(reply.text)["text"]), reply.first_text_s

    return transcribe


def engine_transcribe(spec: EndpointSpec) -> Transcribe:
    model = load(spec.model, settings=EngineSettings(**spec.settings))

    def transcribe(file: AudioFile, is_stream: bool) -> tuple[str, float | None]:
        return model.transcribe(file.path, TranscribeOptions(language=file.language)).text.strip(), None

    return transcribe


def run_round(transcribe: Transcribe, files: Sequence[AudioFile], n_callers: int) -> EndpointRound:
    first_texts_s: list[float] = []
    failures: list[str] = []

    def send(request: tuple[int, AudioFile]) -> str:
        index, file = request
        try:
            text, first_s = transcribe(file, index % STREAM_EVERY == 0)
        except (ChoralError, OSError) as error:
            failures.append(str(error))
            return ""
        if first_s is not None:
            first_texts_s.append(first_s)
        return text

    result = send_all(send, list(enumerate(files)), n_callers)
    return EndpointRound(result.texts, result.latencies_s, tuple(first_texts_s), tuple(failures), result.wall_s)


def open_handler(fields: dict[str, Any]) -> Callable[[Any], EndpointRound]:
    spec = EndpointSpec(**fields)
    transcribe = http_transcribe(spec.url) if spec.url is not None else engine_transcribe(spec)
    return lambda message: run_round(
        transcribe, [AudioFile(**fields) for fields in message["files"]], message["n_callers"]
    )


if __name__ == "__main__":
    serve_messages(open_handler)
