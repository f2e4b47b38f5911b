"""Choral, openai-whisper and faster-whisper as systems to measure: same weights, same sound, same search.

A peer that cannot be run is left out with a note that says why. All get samples that Choral decoded, so that
what differs is the transcription alone.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from choral.audio.recording import Recording
from choral.bench.corpus import Clip
from choral.bench.wer import Heard, System
from choral.errors import ChoralError
from choral.model.checkpoint import Checkpoint
from choral.types import TranscribeOptions

if TYPE_CHECKING:
    from choral.api import Model

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Peers:
    systems: list[System]
    notes: list[str]


def choral_system(model: Model, options: TranscribeOptions) -> System:
    def transcribe(clip: Clip) -> Heard:
        transcript = model.transcribe(load_samples(clip), _for_clip(options, clip))
        return Heard(transcript.text, transcript.language)

    return System("choral", transcribe)


def find_peers(model: Model, options: TranscribeOptions) -> Peers:
    """The peers that are installed and can take this model's weights."""
    from choral.model.store import Store
    from choral.model.weights import open_checkpoint

    path = Store().path(model.name)
    peers = Peers([], [])
    makers: dict[str, Callable[[], System]] = {
        "openai-whisper": lambda: _openai_whisper(open_checkpoint(path), model.device, options),
        "faster-whisper": lambda: _faster_whisper(path, model.device, options),
    }
    packages = {"openai-whisper": "whisper", "faster-whisper": "faster_whisper"}
    for name, make in makers.items():
        if importlib.util.find_spec(packages[name]) is None:
            peers.notes.append(f"{name} is not shown: it is not installed (pip install {name})")
            continue
        try:
            peers.systems.append(make())
        except PeerUnfit as error:
            peers.notes.append(f"{name} is not shown: {error}")
    return peers


class PeerUnfit(ChoralError):
    """This peer cannot take these weights."""


def load_samples(clip: Clip) -> Samples:
    with Recording.open(clip.path) as recording:
        return np.array(recording.samples(0, recording.n_samples), dtype=np.float32)


def _for_clip(options: TranscribeOptions, clip: Clip) -> TranscribeOptions:
    return dataclasses.replace(options, language=options.language or clip.language)


def _openai_whisper(checkpoint: Checkpoint, device: str, options: TranscribeOptions) -> System:
    import torch
    from whisper.model import ModelDimensions, Whisper

    whisper = Whisper(ModelDimensions(**dataclasses.asdict(checkpoint.dims)))
    tensors = {name: np.array(tensor, dtype=np.float32) for name, tensor in checkpoint.tensors.items()}
    whisper.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    whisper = whisper.to(device).eval()
    beam_size = options.beam_size if options.beam_size > 1 else None

    def transcribe(clip: Clip) -> Heard:
        result: dict[str, Any] = whisper.transcribe(
            load_samples(clip),
            language=_language(options, clip, checkpoint.dims.is_multilingual),
            temperature=options.temperatures,
            beam_size=beam_size,
            best_of=options.best_of,
            fp16=device != "cpu",
        )
        return Heard(result["text"], result["language"])

    return System("openai-whisper", transcribe)


def _faster_whisper(path: Path, device: str, options: TranscribeOptions) -> System:
    if not (path / "model.bin").is_file():
        raise PeerUnfit(f"it needs a CTranslate2 folder, and {path} is not one")
    from faster_whisper import WhisperModel

    kind, _, index = device.partition(":")
    compute_type = "float32" if kind == "cpu" else "float16"
    model = WhisperModel(str(path), device=kind, device_index=int(index or 0), compute_type=compute_type)

    def transcribe(clip: Clip) -> Heard:
        segments, info = model.transcribe(
            load_samples(clip),
            language=_language(options, clip, model.model.is_multilingual),
            temperature=options.temperatures,
            beam_size=options.beam_size,
            best_of=options.best_of,
        )
        return Heard("".join(segment.text for segment in segments), info.language)

    return System("faster-whisper", transcribe)


def _language(options: TranscribeOptions, clip: Clip, is_multilingual: bool) -> str | None:
    """An English-only model is not asked for other languages: its peers would warn or fail."""
    return (options.language or clip.language) if is_multilingual else "en"
