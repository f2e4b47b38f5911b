"""CTranslate2's Whisper without any library around it, served in the ways that people build around it.

- `lock`: one request after another, from reading the file to the text;
- `threads`: every caller on its own thread, all on one model, which queues them;
- `copies`: as many copies of the model as there are workers, the threads divided among them;
- `micro-batch`: what waits is read and prepared in parallel, then goes through the model one by one;
- `static`: what waits is prepared in parallel and goes through the model together; all wait for the longest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import HOP_LENGTH
from choral.bench.busy import BusyTime
from choral.bench.clips import AudioFile, read_samples
from choral.bench.dispatcher import Dispatcher
from choral.bench.load_generator import RoundResult, Stages, send_all
from choral.bench.systems.spec import PeerConfig
from choral.engine.window import WindowAudio
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint

Prepared = tuple[npt.NDArray[np.float32], str | None]  # mel features and language
Transcribe = Callable[[AudioFile], str]


class Network:
    """One or more copies of the model, and how long each stage of the work took."""

    def __init__(self, spec: PeerConfig) -> None:
        import ctranslate2

        checkpoint = open_checkpoint(Path(spec.model))
        self._timestamps, self._n_mels = spec.timestamps, checkpoint.dims.n_mels
        self._tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
        self._to_view = ctranslate2.StorageView.from_array
        kind, _, index = spec.device.partition(":")
        self.copies: list[Any] = [
            ctranslate2.models.Whisper(
                str(ctranslate2_folder(checkpoint)),
                device=kind,
                device_index=int(index or 0),
                compute_type=spec.compute_type,
                intra_threads=max(1, spec.threads // spec.n_workers),
            )
            for _ in range(spec.n_workers)
        ]
        self.mel, self.encoder, self.decoder, self.any = BusyTime(), BusyTime(), BusyTime(), BusyTime()

    def prepare(self, request: AudioFile) -> Prepared:
        samples = read_samples(Path(request.path))
        with self.mel:
            mel = WindowAudio(samples, 0, samples.size // HOP_LENGTH, None).log_mel(self._n_mels)
        return mel, request.language

    def transcribe(self, prepared: Sequence[Prepared], copy: Any = None) -> list[str]:
        model = copy or self.copies[0]
        prompts = [self._prompt(language) for _, language in prepared]
        with self.any:
            with self.encoder:
                features = model.encode(self._to_view(np.stack([mel for mel, _ in prepared])))
            with self.decoder:
                found = model.generate(features, prompts, beam_size=1)
        return [self._tokenizer.decode(own.sequences_ids[0]) for own in found]

    def transcribe_one(self, prepared: Prepared) -> str:
        return self.transcribe([prepared])[0]

    def _prompt(self, language: str | None) -> list[int]:
        tokens = self._tokenizer.sot_sequence(language, "transcribe")
        return [*tokens] if self._timestamps else [*tokens, self._tokenizer.no_timestamps]


class Served:
    """The network under one of the strategies."""

    def __init__(self, spec: PeerConfig) -> None:
        self._spec, self._network = spec, Network(spec)
        self._preparing = ThreadPoolExecutor(max_workers=max(spec.batch_size, 1))
        self._transcribe = self._strategies()[spec.strategy]()

    def run(self, requests: Sequence[AudioFile]) -> RoundResult:
        network = self._network
        clocks = (network.mel, network.encoder, network.decoder, network.any)
        before_s = [clock.busy_s for clock in clocks]
        run = send_all(self._transcribe, requests, self._spec.n_callers)
        mel_s, encoder_s, decoder_s, any_s = (
            clock.busy_s - own_s for clock, own_s in zip(clocks, before_s, strict=True)
        )
        # Where calls overlap, a stage's time is also that of the waiting for the others.
        is_apart = self._spec.strategy in ("lock", "static")
        stages = Stages(mel_s, encoder_s, decoder_s) if is_apart else None
        return replace(run, idle_share=max(0.0, 1 - any_s / run.wall_s), stages=stages)

    def _strategies(self) -> dict[str, Callable[[], Transcribe]]:
        return {
            "lock": self._one_at_a_time,
            "threads": lambda: lambda request: self._network.transcribe_one(self._network.prepare(request)),
            "copies": self._on_a_free_copy,
            "micro-batch": lambda: Dispatcher(self._spec.batch_size, self._prepare_then_one_by_one).call,
            "static": lambda: Dispatcher(self._spec.batch_size, self._prepare_then_together).call,
        }

    def _one_at_a_time(self) -> Transcribe:
        lock = threading.Lock()

        def transcribe(request: AudioFile) -> str:
            with lock:
                return self._network.transcribe_one(self._network.prepare(request))

        return transcribe

    def _on_a_free_copy(self) -> Transcribe:
        free: SimpleQueue[Any] = SimpleQueue()
        for copy in self._network.copies:
            free.put(copy)

        def transcribe(request: AudioFile) -> str:
            prepared = self._network.prepare(request)
            copy = free.get()
            try:
                return self._network.transcribe([prepared], copy)[0]
            finally:
                free.put(copy)

        return transcribe

    def _prepare_then_one_by_one(self, requests: Sequence[AudioFile]) -> Iterator[str]:
        for prepared in list(self._preparing.map(self._network.prepare, requests)):
            yield self._network.transcribe_one(prepared)

    def _prepare_then_together(self, requests: Sequence[AudioFile]) -> Sequence[str]:
        return self._network.transcribe(list(self._preparing.map(self._network.prepare, requests)))


def open_system(spec: PeerConfig) -> Served:
    return Served(spec)
