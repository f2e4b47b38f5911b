"""Choral, openai-whisper and faster-whisper as systems to measure: same weights, same sound, same search.

A peer that is not installed is left out with a note that says why. All get samples that Choral decoded, so that
what differs is the transcription alone.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from choral.bench.clips import read_samples
from choral.bench.corpus import LabelledClip
from choral.bench.systems import faster_whisper_model, openai_whisper
from choral.bench.wer import Recognized, System
from choral.model.checkpoint import Checkpoint
from choral.types import TranscribeOptions

if TYPE_CHECKING:
    from choral.api import Model


@dataclass(frozen=True)
class Peers:
    systems: list[System]
    notes: list[str]


def choral_system(model: Model, options: TranscribeOptions) -> System:
    def transcribe(clip: LabelledClip) -> Recognized:
        transcript = model.transcribe(read_samples(clip.path), _for_clip(options, clip))
        return Recognized(transcript.text, transcript.language)

    return System("choral", transcribe)


def find_peers(model: Model, options: TranscribeOptions) -> Peers:
    """The peers that are installed, with this model's weights."""
    from choral.model.store import ModelStore
    from choral.model.weights import open_checkpoint

    checkpoint = open_checkpoint(ModelStore().path(model.name))
    peers = Peers([], [])
    makers: dict[str, tuple[str, Callable[[], System]]] = {
        "openai-whisper": ("whisper", lambda: _openai_whisper(checkpoint, model.device, options)),
        "faster-whisper": ("faster_whisper", lambda: _faster_whisper(checkpoint, model.device, options)),
    }
    for name, (package, make) in makers.items():
        if importlib.util.find_spec(package) is None:
            peers.notes.append(f"{name} is not shown: it is not installed (pip install {name})")
        else:
            peers.systems.append(make())
    return peers


def _for_clip(options: TranscribeOptions, clip: LabelledClip) -> TranscribeOptions:
    return dataclasses.replace(options, language=options.language or clip.language)


def _openai_whisper(checkpoint: Checkpoint, device: str, options: TranscribeOptions) -> System:
    whisper = openai_whisper.make_model(checkpoint, device)
    beam_size = options.beam_size if options.beam_size > 1 else None

    def transcribe(clip: LabelledClip) -> Recognized:
        result: dict[str, Any] = whisper.transcribe(
            read_samples(clip.path),
            language=_language(options, clip, checkpoint.dims.is_multilingual),
            temperature=options.temperatures,
            beam_size=beam_size,
            best_of=options.best_of,
            fp16=device != "cpu",
        )
        return Recognized(result["text"], result["language"])

    return System("openai-whisper", transcribe)


def _faster_whisper(checkpoint: Checkpoint, device: str, options: TranscribeOptions) -> System:
    compute_type = "float32" if device == "cpu" else "float16"
    model = faster_whisper_model.make_model(checkpoint, device, compute_type)

    def transcribe(clip: LabelledClip) -> Recognized:
        segments, info = model.transcribe(
            read_samples(clip.path),
            language=_language(options, clip, model.model.is_multilingual),
            temperature=options.temperatures,
            beam_size=options.beam_size,
            best_of=options.best_of,
        )
        return Recognized("".join(segment.text for segment in segments), info.language)

    return System("faster-whisper", transcribe)


def _language(options: TranscribeOptions, clip: LabelledClip, is_multilingual: bool) -> str | None:
    """An English-only model is not asked for other languages: its peers would warn or fail."""
    return (options.language or clip.language) if is_multilingual else "en"
