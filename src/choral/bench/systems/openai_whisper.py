"""openai-whisper, one request after another, with weights that Choral read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from choral.bench.clips import AudioFile, Samples
from choral.bench.load_generator import RoundResult, send_all
from choral.bench.systems.spec import PeerConfig
from choral.model.checkpoint import Checkpoint
from choral.model.weights import open_checkpoint


class OpenaiWhisper:
    def __init__(self, spec: PeerConfig, model: Any) -> None:
        assert spec.n_callers == 1, "its decoder keeps state in the model"
        self._spec, self._model = spec, model

    def run(self, requests: Sequence[AudioFile]) -> RoundResult:
        return send_all(self._transcribe, [(request.samples(), request.language) for request in requests], 1)

    def _transcribe(self, sent: tuple[Samples, str | None]) -> str:
        samples, language = sent
        result: dict[str, Any] = self._model.transcribe(
            samples,
            language=language if self._model.is_multilingual else "en",
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=not self._spec.timestamps,
            fp16=self._spec.compute_type == "float16",
        )
        text: str = result["text"]
        return text


def open_system(spec: PeerConfig) -> OpenaiWhisper:
    import torch

    torch.set_num_threads(spec.threads)
    return OpenaiWhisper(spec, make_model(open_checkpoint(Path(spec.model)), spec.device))


def make_model(checkpoint: Checkpoint, device: str) -> Any:
    """Its network with the tensors of any checkpoint."""
    import torch
    from whisper.model import ModelDimensions, Whisper

    whisper = Whisper(ModelDimensions(**dataclasses.asdict(checkpoint.dims)))
    tensors = {name: np.array(tensor, dtype=np.float32) for name, tensor in checkpoint.tensors.items()}
    whisper.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    return whisper.to(device).eval()
