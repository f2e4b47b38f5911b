"""faster-whisper: its model from one or many threads, or its pipeline that cuts a file into batches."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from choral.bench.clips import AudioFile, Samples
from choral.bench.load_generator import RoundResult, send_all
from choral.bench.systems.hugging_tokenizer import tokenizer_json
from choral.bench.systems.spec import PeerConfig
from choral.model.checkpoint import Checkpoint
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.weights import open_checkpoint


class FasterWhisper:
    def __init__(self, spec: PeerConfig, model: Any) -> None:
        from faster_whisper import BatchedInferencePipeline

        self._spec, self._is_multilingual = spec, model.model.is_multilingual
        self._transcriber = BatchedInferencePipeline(model) if spec.batch_size else model
        self._settings: dict[str, Any] = {}
        if spec.batch_size:
            self._settings = {"batch_size": spec.batch_size, "vad_filter": spec.is_long}

    def run(self, requests: Sequence[AudioFile]) -> RoundResult:
        sent = [(request.samples(), request.language) for request in requests]
        return send_all(self._transcribe, sent, self._spec.n_callers)

    def _transcribe(self, sent: tuple[Samples, str | None]) -> str:
        samples, language = sent
        segments, _ = self._transcriber.transcribe(
            samples,
            language=language if self._is_multilingual else "en",
            temperature=0.0,
            beam_size=1,
            condition_on_previous_text=False,
            without_timestamps=not self._spec.timestamps,
            **self._settings,
        )
        return "".join(segment.text for segment in segments)


def open_system(spec: PeerConfig) -> FasterWhisper:
    n_threads = max(1, spec.threads // spec.n_workers)
    checkpoint = open_checkpoint(Path(spec.model))
    return FasterWhisper(spec, make_model(checkpoint, spec.device, spec.compute_type, n_threads, spec.n_workers))


def make_model(
    checkpoint: Checkpoint, device: str, compute_type: str, threads_per_worker: int = 0, n_workers: int = 1
) -> Any:
    """Its model with the weights of any checkpoint; with 0 threads it chooses how many."""
    from faster_whisper import WhisperModel

    kind, _, index = device.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        complete(Path(folder), checkpoint)
        return WhisperModel(
            folder,
            device=kind,
            device_index=int(index or 0),
            compute_type=compute_type,
            cpu_threads=threads_per_worker,
            num_workers=n_workers,
        )


def complete(folder: Path, checkpoint: Checkpoint) -> None:
    """Links to the model, and beside them what the library would else fetch from the network or guess wrong."""
    for path in ctranslate2_folder(checkpoint).iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path.resolve())
    if not (folder / "tokenizer.json").exists():
        (folder / "tokenizer.json").write_bytes(tokenizer_json(checkpoint))
    if not (folder / "preprocessor_config.json").exists():
        (folder / "preprocessor_config.json").write_text(json.dumps({"feature_size": checkpoint.dims.n_mels}))
