"""The two sides of `choral bench serve`, in processes of their own: callers of a server, or an engine with its callers.

`python -m choral.bench.endpoints` takes an `EndpointSpec` first; every message after it is a round of requests.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Self

from choral.api import load
from choral.bench import process_tree
from choral.bench.clips import AudioFile
from choral.bench.http_client import ApiClient
from choral.bench.json_process import JsonProcess, serve_messages
from choral.bench.load_generator import send_all
from choral.config import EngineSettings
from choral.errors import ChoralError, EngineError
from choral.options import TranscribeOptions

STREAM_EVERY = 2  # every second request to the server is a stream
MAX_CALLER_PROCESSES, CALLERS_PER_PROCESS = 4, 32  # one Python process sends fewer requests than a fast server answers

Transcribe = Callable[[AudioFile, bool], tuple[str, float | None]]  # (file, is_stream) → text, time of the first text


@dataclasses.dataclass(frozen=True)
class EndpointSpec:
    """Callers of the server at `url`, or an engine if that is None: of a model, or of random weights in a shape."""

    url: str | None
    model: str | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    random_weights: str | None = None
    form_fields: dict[str, str] = dataclasses.field(default_factory=dict)  # of every request to the server


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


class ServerCallers:
    """Callers of a server in as many processes as it takes to keep it busy."""

    def __init__(self, url: str, form_fields: Mapping[str, str] | None = None) -> None:
        spec = EndpointSpec(url, form_fields=dict(form_fields or {}))
        with ExitStack() as stack:
            self._endpoints = [stack.enter_context(Endpoint(spec)) for _ in range(MAX_CALLER_PROCESSES)]
            self._stack = stack.pop_all()

    def run(self, files: Sequence[AudioFile], n_callers: int) -> EndpointRound:
        n_processes = min(MAX_CALLER_PROCESSES, -(-n_callers // CALLERS_PER_PROCESS))
        endpoints = self._endpoints[:n_processes]
        shares = [files[index::n_processes] for index in range(n_processes)]
        callers = [len(range(index, n_callers, n_processes)) for index in range(n_processes)]
        with ThreadPoolExecutor(n_processes) as pool:
            rounds = list(pool.map(Endpoint.run, endpoints, shares, callers))
        in_turn = zip_longest(*(each.texts for each in rounds))  # the order of `files`
        return EndpointRound(
            texts=tuple(text for texts in in_turn for text in texts if text is not None),
            latencies_s=tuple(chain.from_iterable(each.latencies_s for each in rounds)),
            first_texts_s=tuple(chain.from_iterable(each.first_texts_s for each in rounds)),
            failures=tuple(chain.from_iterable(each.failures for each in rounds)),
            wall_s=max(each.wall_s for each in rounds),
        )

    @property
    def cpu_s(self) -> float:
        return sum(process_tree.cpu_s(endpoint.pid) for endpoint in self._endpoints)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def http_transcribe(spec: EndpointSpec) -> Transcribe:
    local = threading.local()

    def transcribe(file: AudioFile, is_stream: bool) -> tuple[str, float | None]:
        path = Path(file.path)
        fields = {**spec.form_fields, **({"language": file.language} if file.language else {})}
        if is_stream:
            fields["stream"] = "true"
        if not hasattr(local, "client"):
            assert spec.url is not None
            local.client = ApiClient(spec.url)
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


def random_engine_transcribe(shape: str, settings: EngineSettings) -> Transcribe:
    """The engine alone: noise in memory, as many tokens as `choral.bench.random_server` forces, and no text."""
    from choral.bench.gpu_load import GpuLoadGenerator  # imports torch, which callers do not need
    from choral.bench.random_model import random_engine_and_tokenizer

    load = GpuLoadGenerator(*random_engine_and_tokenizer(shape, settings))

    def transcribe(file: AudioFile, is_stream: bool) -> tuple[str, float | None]:
        load.run_short_window()
        return "", None

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
    if spec.url is not None:
        transcribe = http_transcribe(spec)
    elif spec.random_weights is not None:
        transcribe = random_engine_transcribe(spec.random_weights, EngineSettings(**spec.settings))
    else:
        transcribe = engine_transcribe(spec)
    return lambda message: run_round(
        transcribe, [AudioFile(**fields) for fields in message["files"]], message["n_callers"]
    )


if __name__ == "__main__":
    serve_messages(open_handler)
