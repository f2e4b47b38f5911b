"""Choral and the other Whisper libraries behind one interface, all with weights that Choral has read.

`open_peer` opens the library that a `PeerConfig` names. All get samples that Choral decoded, so that only the
transcription differs.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from choral.api import Model, load
from choral.bench.clips import Samples
from choral.config import EngineSettings
from choral.model.checkpoint import Checkpoint
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.weights import open_checkpoint
from choral.options import TranscribeOptions

ClipInput = tuple[Samples, str | None]  # with its language; None: to be detected


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    """A library, its settings, and the weights."""

    family: str  # what the table compares; the fastest setting of a family represents it
    setting: str = ""  # in words
    library: str  # a key of LIBRARIES
    model: str  # path of the weights
    device: str
    compute_type: str
    threads: int = 0  # in all; 0: the library's default
    engine: str = "auto"  # Choral's
    is_sequential: bool = False  # Choral's mode, also for a long recording
    n_workers: int = 1  # share the threads
    n_callers: int = 1
    batch_size: int = 0  # windows of one file, or whole requests, that run together
    is_long: bool = False  # one long recording instead of many short ones
    vad: bool = False  # the library's own voice detector, for audio that is not cut into batches
    timestamps: bool = True
    temperatures: tuple[float, ...] = (0.0,)
    beam_size: int = 1
    best_of: int = 1
    condition_on_previous_text: bool = False
    strategy: str = ""  # how a model is served, for benchmarks/strategies.py

    @property
    def name(self) -> str:
        return f"{self.family}, {self.setting}" if self.setting else self.family


@dataclass(frozen=True)
class Recognized:
    text: str
    language: str


class Peer(Protocol):
    def transcribe(self, samples: Samples, language: str | None) -> Recognized: ...


@runtime_checkable
class BatchPeer(Peer, Protocol):
    def transcribe_batch(self, clips: Sequence[ClipInput]) -> list[str]: ...


class ChoralPeer:
    def __init__(self, model: Model, options: TranscribeOptions) -> None:
        self.model, self._options = model, options

    def transcribe(self, samples: Samples | str, language: str | None) -> Recognized:
        transcript = self.model.transcribe(samples, dataclasses.replace(self._options, language=language))
        return Recognized(transcript.text, transcript.language)


class OpenaiWhisper:
    """Not thread-safe: its decoder keeps state in the model."""

    def __init__(self, config: PeerConfig) -> None:
        import torch
        from whisper.model import ModelDimensions, Whisper

        if config.threads:
            torch.set_num_threads(config.threads)
        checkpoint = open_checkpoint(Path(config.model))
        model = Whisper(ModelDimensions(**dataclasses.asdict(checkpoint.dims)))
        tensors = {name: np.array(tensor, dtype=np.float32) for name, tensor in checkpoint.tensors.items()}
        model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
        self._config, self._model = config, model.to(config.device).eval()

    def transcribe(self, samples: Samples, language: str | None) -> Recognized:
        config = self._config
        result: dict[str, Any] = self._model.transcribe(
            samples,
            language=language if self._model.is_multilingual else "en",
            temperature=tuple(config.temperatures),
            beam_size=config.beam_size if config.beam_size > 1 else None,
            best_of=config.best_of,
            condition_on_previous_text=config.condition_on_previous_text,
            without_timestamps=not config.timestamps,
            fp16=config.compute_type == "float16",
        )
        return Recognized(result["text"], result["language"])


class FasterWhisper:
    """Its model, or with a batch size its pipeline that cuts a file into batches."""

    def __init__(self, config: PeerConfig) -> None:
        from faster_whisper import BatchedInferencePipeline, WhisperModel

        kind, _, index = config.device.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            write_faster_whisper_folder(Path(folder), open_checkpoint(Path(config.model)))
            model = WhisperModel(
                folder,
                device=kind,
                device_index=int(index or 0),
                compute_type=config.compute_type,
                cpu_threads=max(1, config.threads // config.n_workers) if config.threads else 0,
                num_workers=config.n_workers,
            )
        self._is_multilingual = model.model.is_multilingual
        self._transcriber = BatchedInferencePipeline(model) if config.batch_size else model
        self._settings: dict[str, Any] = {
            "temperature": list(config.temperatures),
            "beam_size": config.beam_size,
            "best_of": config.best_of,
            "condition_on_previous_text": config.condition_on_previous_text,
            "without_timestamps": not config.timestamps,
            "vad_filter": config.vad,
        }
        if config.batch_size:
            self._settings |= {"batch_size": config.batch_size, "vad_filter": config.is_long}

    def transcribe(self, samples: Samples, language: str | None) -> Recognized:
        language = language if self._is_multilingual else "en"
        segments, info = self._transcriber.transcribe(samples, language=language, **self._settings)
        return Recognized("".join(segment.text for segment in segments), info.language)


def write_faster_whisper_folder(folder: Path, checkpoint: Checkpoint) -> None:
    """Links to the model, and the files that the library would otherwise download or guess wrong."""
    from choral.bench.peer_transformers import make_tokenizer

    for path in ctranslate2_folder(checkpoint).iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path.resolve())
    if not (folder / "tokenizer.json").exists():
        (folder / "tokenizer.json").write_text(make_tokenizer(checkpoint).to_str(), encoding="utf-8")
    if not (folder / "preprocessor_config.json").exists():
        (folder / "preprocessor_config.json").write_text(json.dumps({"feature_size": checkpoint.dims.n_mels}))


class WhisperCpp:
    def __init__(self, config: PeerConfig) -> None:
        package: Any = importlib.import_module("pywhispercpp.model")
        path = Path(config.model)
        self._model = package.Model(
            str(next(path.glob("ggml-*.bin")) if path.is_dir() else path),
            n_threads=config.threads,
            temperature=0.0,
            temperature_inc=0.0,
            no_context=True,
            no_timestamps=not config.timestamps,
            print_progress=False,
            print_realtime=False,
            greedy={"best_of": 1},
        )

    def transcribe(self, samples: Samples, language: str | None) -> Recognized:
        segments = self._model.transcribe(samples, language=language or "auto")
        return Recognized(" ".join(segment.text for segment in segments), language or "en")


def open_transformers(config: PeerConfig) -> BatchPeer:
    from choral.bench.peer_transformers import TransformersPeer

    return TransformersPeer(config)


def open_choral(config: PeerConfig) -> ChoralPeer:
    is_batched = config.is_long and not config.is_sequential
    settings = EngineSettings(
        optimize_for="throughput" if is_batched or config.n_callers > 1 else "latency",
        engine=config.engine,  # type: ignore[arg-type]  # checked by the settings
        device=config.device,
        compute_type=config.compute_type,  # type: ignore[arg-type]
        threads=config.threads,
    )
    options = TranscribeOptions(
        mode="batched" if is_batched else "sequential",
        temperature=0.0,
        condition_on_previous_text=False,
        timestamps=config.timestamps,
    )
    return ChoralPeer(load(config.model, settings=settings), options)


LIBRARIES: dict[str, tuple[str, Callable[[PeerConfig], Peer]]] = {  # package to install: package to import, opener
    "choral": ("choral", open_choral),
    "openai-whisper": ("whisper", OpenaiWhisper),
    "faster-whisper": ("faster_whisper", FasterWhisper),
    "transformers": ("transformers", open_transformers),
    "pywhispercpp": ("pywhispercpp", WhisperCpp),
}


def open_peer(config: PeerConfig) -> Peer:
    return LIBRARIES[config.library][1](config)


def is_installed(library: str) -> bool:
    return importlib.util.find_spec(LIBRARIES[library][0]) is not None


def not_installed_note(library: str) -> str:
    return f"{library} is not shown: it is not installed (pip install {library})"
