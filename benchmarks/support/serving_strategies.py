"""Ways to serve one Whisper model to many callers: five built on CTranslate2, and Choral's engines.

- `lock`: one request after another, from reading the file to the text;
- `threads`: every caller on its own thread, all on one model, which queues them;
- `copies`: several copies of the model, the threads divided among them;
- `micro-batch`: waiting requests are read and prepared in parallel, then run one by one;
- `static`: waiting requests are prepared in parallel and run together; all wait for the longest.

`python -m support.serving_strategies` runs one of them in its own process for `strategies.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import HOP_LENGTH
from choral.bench.clips import AudioFile, read_samples
from choral.bench.json_process import serve_messages
from choral.bench.load_generator import RoundResult, send_all
from choral.bench.peers import PeerConfig, open_choral
from choral.engine.engine_loop import StepRecord
from choral.engine.group import as_local
from choral.engine.steps import Encode
from choral.engine.window import WindowAudio
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint

Prepared = tuple[npt.NDArray[np.float32], str | None]  # mel features and language
Transcribe = Callable[[AudioFile], str]


class BusyTime:
    """The time during which at least one call runs; every call runs inside a `with` of it."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._lock = threading.Lock()
        self._n_active = 0
        self._since_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._n_active == 0:
                self._since_s = time.perf_counter()
            self._n_active += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_active -= 1
            if self._n_active == 0:
                self.busy_s += time.perf_counter() - self._since_s


class Dispatcher:
    """A queue in front of a model: one daemon thread runs waiting requests together, up to a batch size."""

    def __init__(self, batch_size: int, run_batch: Callable[[Sequence[AudioFile]], Iterable[str]]) -> None:
        self._batch_size, self._run_batch = batch_size, run_batch
        self._waiting: SimpleQueue[tuple[AudioFile, Future[str]]] = SimpleQueue()
        threading.Thread(target=self._run, name="choral-dispatcher", daemon=True).start()

    def call(self, file: AudioFile) -> str:
        future: Future[str] = Future()
        self._waiting.put((file, future))
        return future.result()

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            try:
                texts = self._run_batch([file for file, _ in batch])
                for (_, future), text in zip(batch, texts, strict=True):
                    future.set_result(text)
            except BaseException as error:  # bugs too: the callers wait for a result
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)

    def _next_batch(self) -> list[tuple[AudioFile, Future[str]]]:
        batch = [self._waiting.get()]
        with suppress(Empty):
            while len(batch) < self._batch_size:
                batch.append(self._waiting.get_nowait())
        return batch


class Ctranslate2Model:
    """One or more copies of the model, and the time of each stage."""

    def __init__(self, config: PeerConfig) -> None:
        import ctranslate2

        checkpoint = open_checkpoint(Path(config.model))
        self._timestamps, self._n_mels = config.timestamps, checkpoint.dims.n_mels
        self._tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
        self._to_view = ctranslate2.StorageView.from_array
        kind, _, index = config.device.partition(":")
        self.copies: list[Any] = [
            ctranslate2.models.Whisper(
                str(ctranslate2_folder(checkpoint)),
                device=kind,
                device_index=int(index or 0),
                compute_type=config.compute_type,
                intra_threads=max(1, config.threads // config.n_workers),
            )
            for _ in range(config.n_workers)
        ]
        self.mel, self.encoder, self.decoder, self.any = BusyTime(), BusyTime(), BusyTime(), BusyTime()

    def prepare(self, file: AudioFile) -> Prepared:
        samples = read_samples(Path(file.path))
        with self.mel:
            return log_mel(samples, self._n_mels), file.language

    def transcribe(self, prepared: Sequence[Prepared], copy: Any = None) -> list[str]:
        model = copy or self.copies[0]
        prompts = [self._prompt(language) for _, language in prepared]
        with self.any:
            with self.encoder:
                features = model.encode(self._to_view(np.stack([mel for mel, _ in prepared])))
            with self.decoder:
                results = model.generate(features, prompts, beam_size=1)
        return [self._tokenizer.decode(result.sequences_ids[0]) for result in results]

    def _prompt(self, language: str | None) -> list[int]:
        tokens = self._tokenizer.sot_sequence(language, "transcribe")
        return [*tokens] if self._timestamps else [*tokens, self._tokenizer.no_timestamps]


def log_mel(samples: npt.NDArray[np.float32], n_mels: int) -> npt.NDArray[np.float32]:
    return WindowAudio(samples, 0, samples.size // HOP_LENGTH, None).log_mel(n_mels)


class Ctranslate2Server:
    """The model under one of the strategies."""

    def __init__(self, config: PeerConfig) -> None:
        self._config, self._model = config, Ctranslate2Model(config)
        self._prep_threads = ThreadPoolExecutor(max_workers=max(config.batch_size, 1))
        strategies: dict[str, Callable[[], Transcribe]] = {
            "lock": self._locked,
            "threads": lambda: self._transcribe_one,
            "copies": self._on_a_free_copy,
            "micro-batch": lambda: Dispatcher(config.batch_size, self._prepare_then_one_by_one).call,
            "static": lambda: Dispatcher(config.batch_size, self._prepare_then_together).call,
        }
        self._transcribe = strategies[config.strategy]()

    def run(self, files: Sequence[AudioFile]) -> RoundResult:
        model = self._model
        clocks = {"mel_s": model.mel, "encoder_s": model.encoder, "decoder_s": model.decoder, "any_s": model.any}
        before_s = {name: clock.busy_s for name, clock in clocks.items()}
        result = send_all(self._transcribe, files, self._config.n_callers)
        times_s = {name: clock.busy_s - before_s[name] for name, clock in clocks.items()}
        internals = {"idle_share": max(0.0, 1 - times_s.pop("any_s") / result.wall_s)}
        if self._config.strategy in ("lock", "static"):  # elsewhere calls overlap, and a stage includes waiting
            internals |= times_s
        return replace(result, internals=internals)

    def _transcribe_one(self, file: AudioFile) -> str:
        return self._model.transcribe([self._model.prepare(file)])[0]

    def _locked(self) -> Transcribe:
        lock = threading.Lock()

        def transcribe(file: AudioFile) -> str:
            with lock:
                return self._transcribe_one(file)

        return transcribe

    def _on_a_free_copy(self) -> Transcribe:
        free: SimpleQueue[Any] = SimpleQueue()
        for copy in self._model.copies:
            free.put(copy)

        def transcribe(file: AudioFile) -> str:
            prepared = self._model.prepare(file)
            copy = free.get()
            try:
                return self._model.transcribe([prepared], copy)[0]
            finally:
                free.put(copy)

        return transcribe

    def _prepare_then_one_by_one(self, files: Sequence[AudioFile]) -> Iterator[str]:
        for prepared in list(self._prep_threads.map(self._model.prepare, files)):
            yield self._model.transcribe([prepared])[0]

    def _prepare_then_together(self, files: Sequence[AudioFile]) -> Sequence[str]:
        return self._model.transcribe(list(self._prep_threads.map(self._model.prepare, files)))


class ChoralServer:
    """Every caller calls `model.transcribe` with a file, and the engine batches them."""

    def __init__(self, config: PeerConfig) -> None:
        self._config, self._peer = config, open_choral(config)
        self._encode_s = self._decode_s = 0.0
        as_local(self._peer.model._engine).observe(self._observe)

    def run(self, files: Sequence[AudioFile]) -> RoundResult:
        self._encode_s = self._decode_s = 0.0
        model = self._peer.model
        busy_s = model.stats.busy_s
        result = send_all(self._transcribe, files, self._config.n_callers)
        idle_share = max(0.0, 1 - (model.stats.busy_s - busy_s) / result.wall_s)
        mel_s = self._mel_s(files)  # part of the encoder's step: timed again alone, and subtracted
        stages = {"mel_s": mel_s, "encoder_s": max(0.0, self._encode_s - mel_s), "decoder_s": self._decode_s}
        return replace(result, internals={"idle_share": idle_share, **stages})

    def _transcribe(self, file: AudioFile) -> str:
        return self._peer.transcribe(file.path, file.language).text

    def _observe(self, record: StepRecord) -> None:
        if isinstance(record.step, Encode):
            self._encode_s += record.run_s
        else:
            self._decode_s += record.run_s

    def _mel_s(self, files: Sequence[AudioFile]) -> float:
        clips = [file.samples() for file in files]
        started_s = time.perf_counter()
        for samples in clips:
            log_mel(samples, self._peer.model._transcriber.dims.n_mels)
        return time.perf_counter() - started_s


def open_server(config: PeerConfig) -> Ctranslate2Server | ChoralServer:
    return Ctranslate2Server(config) if config.strategy else ChoralServer(config)


def open_handler(fields: dict[str, Any]) -> Callable[[Any], RoundResult]:
    server = open_server(PeerConfig(**fields))
    return lambda message: server.run([AudioFile(**fields) for fields in message])


if __name__ == "__main__":
    serve_messages(open_handler)
