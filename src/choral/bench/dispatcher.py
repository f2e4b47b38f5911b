"""A queue in front of a model that takes several requests at once: whatever waits, up to a number, is one batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

from choral.bench.clips import AudioFile

Serve = Callable[[Sequence[AudioFile]], Iterable[str]]  # texts in the order of the requests, each as it is ready


class Dispatcher:
    """Callers wait in `call`; one thread, which ends with the program, takes batches and serves them."""

    def __init__(self, batch_size: int, serve: Serve) -> None:
        self._batch_size, self._serve = batch_size, serve
        self._waiting: SimpleQueue[tuple[AudioFile, Future[str]]] = SimpleQueue()
        threading.Thread(target=self._work, name="choral-dispatcher", daemon=True).start()

    def call(self, request: AudioFile) -> str:
        answer: Future[str] = Future()
        self._waiting.put((request, answer))
        return answer.result()

    def _work(self) -> None:
        while True:
            batch = self._next_batch()
            try:
                texts = self._serve([request for request, _ in batch])
                for (_, answer), text in zip(batch, texts, strict=True):
                    answer.set_result(text)
            except BaseException as error:  # a bug's too: whoever waits must learn of it
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)

    def _next_batch(self) -> list[tuple[AudioFile, Future[str]]]:
        batch = [self._waiting.get()]
        with suppress(Empty):
            while len(batch) < self._batch_size:
                batch.append(self._waiting.get_nowait())
        return batch
