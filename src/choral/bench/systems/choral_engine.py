"""Choral itself: every caller calls `model.transcribe`, and the engine puts them together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from choral.api import Model, load
from choral.audio.constants import HOP_LENGTH
from choral.bench.clips import AudioFile, Samples
from choral.bench.load_generator import RoundResult, Stages, send_all
from choral.bench.systems.spec import PeerConfig
from choral.config import ComputeType, EngineName
from choral.engine.engine_loop import StepRecord
from choral.engine.steps import Encode
from choral.engine.window import WindowAudio
from choral.types import TranscribeOptions

Sent = tuple[Samples | str, str | None]


class Choral:
    def __init__(self, model: Model, spec: PeerConfig) -> None:
        self._model, self._spec = model, spec
        self._encode_s = self._decode_s = 0.0
        model._engine.observe(self._see)

    def run(self, requests: Sequence[AudioFile]) -> RoundResult:
        sent: list[Sent] = [
            (request.path if self._spec.reads_files else request.samples(), request.language) for request in requests
        ]
        self._encode_s = self._decode_s = 0.0
        busy_s = self._model.stats.busy_s
        run = send_all(self._transcribe, sent, self._spec.n_callers)
        busy_s = self._model.stats.busy_s - busy_s
        return replace(run, idle_share=max(0.0, 1 - busy_s / run.wall_s), stages=self._stages(requests))

    def _transcribe(self, sent: Sent) -> str:
        audio, language = sent
        return self._model.transcribe(audio, options_of(self._spec, language)).text

    def _see(self, record: StepRecord) -> None:
        if isinstance(record.step, Encode):
            self._encode_s += record.run_s
        else:
            self._decode_s += record.run_s

    def _stages(self, requests: Sequence[AudioFile]) -> Stages | None:
        """The mel features are part of the encoder's step: their time is taken once more, alone, and set off."""
        if self._spec.is_long or not self._spec.reads_files:
            return None
        sounds = [request.samples() for request in requests]
        n_mels = self._model._transcriber.dims.n_mels
        started_s = time.perf_counter()
        for samples in sounds:
            WindowAudio(samples, 0, samples.size // HOP_LENGTH, None).log_mel(n_mels)
        mel_s = time.perf_counter() - started_s
        return Stages(mel_s, max(0.0, self._encode_s - mel_s), self._decode_s)


def options_of(spec: PeerConfig, language: str | None) -> TranscribeOptions:
    return TranscribeOptions(
        language=language,
        mode="batched" if spec.is_long else "sequential",
        temperature=0.0,
        condition_on_previous_text=False,
        timestamps=spec.timestamps,
    )


def open_system(spec: PeerConfig) -> Choral:
    engine: EngineName = next(name for name in get_args(EngineName) if name == spec.engine)
    compute_type: ComputeType = next(name for name in get_args(ComputeType) if name == spec.compute_type)
    model = load(spec.model, engine=engine, device=spec.device, compute_type=compute_type, threads=spec.threads)
    return Choral(model, spec)
