"""whisper.cpp through `pywhispercpp`, one request after another; it takes its own ggml files alone."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from choral.bench.clips import AudioFile, Samples
from choral.bench.load_generator import RoundResult, send_all
from choral.bench.systems.spec import PeerConfig


class WhisperCpp:
    def __init__(self, spec: PeerConfig, model: Any) -> None:
        self._spec, self._model = spec, model

    def run(self, requests: Sequence[AudioFile]) -> RoundResult:
        return send_all(self._transcribe, [(request.samples(), request.language) for request in requests], 1)

    def _transcribe(self, sent: tuple[Samples, str | None]) -> str:
        samples, language = sent
        segments = self._model.transcribe(samples, language=language or "auto")
        return " ".join(segment.text for segment in segments)


def open_system(spec: PeerConfig) -> WhisperCpp:
    package: Any = importlib.import_module("pywhispercpp.model")

    path = Path(spec.model)
    file = next(path.glob("ggml-*.bin")) if path.is_dir() else path
    model = package.Model(
        str(file),
        n_threads=spec.threads,
        temperature=0.0,
        temperature_inc=0.0,
        no_context=True,
        no_timestamps=not spec.timestamps,
        print_progress=False,
        print_realtime=False,
        greedy={"best_of": 1},
    )
    return WhisperCpp(spec, model)
