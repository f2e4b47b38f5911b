"""Files for the server that has the live sessions: one, or one of 5 s again and again, each a little different."""

from __future__ import annotations

import io
import json
import threading
import time
import wave
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.bench.load import FULL_SCALE
from choral.bench.serve.calls import Caller
from choral.errors import EngineError

FILE_S = 5.0
PAUSE_S = 1.0  # between two files that are sent beside sessions

Int16 = npt.NDArray[np.int16]


class FileSender:
    """In a `with` it sends them in the background; `seconds` are what the answers took."""

    def __init__(self, url: str, samples: npt.NDArray[np.float32]) -> None:
        self._url = url
        self._samples = np.resize(samples, round(FILE_S * SAMPLE_RATE))
        self._n_sent = 0
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self.seconds: list[float] = []

    def send(self, n_files: int) -> list[float]:
        return [self._one() for _ in range(n_files)]

    def __enter__(self) -> FileSender:
        self.seconds, self._is_over = [], threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._is_over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._is_over.wait(PAUSE_S):
            self.seconds.append(self._one())

    def _one(self) -> float:
        self._n_sent += 1
        samples = noisy(self._samples, (2, self._n_sent))
        started_s = time.perf_counter()
        transcribe(self._url, samples, {})
        return time.perf_counter() - started_s


def transcribe(url: str, samples: Int16, fields: Mapping[str, str]) -> Any:
    """Sent as a file, as any other client would."""
    caller = Caller(url)
    try:
        answer = caller.send("talk.wav", wav_bytes(samples), fields)
    finally:
        caller.close()
    if answer.status != 200:
        raise EngineError(f"a file was answered with {answer.status}: {answer.text[:200]}")
    return json.loads(answer.text)


def wav_bytes(samples: Int16) -> bytes:
    packed = io.BytesIO()
    with wave.open(packed, "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, samples.size, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return packed.getvalue()


def noisy(samples: npt.NDArray[np.float32], seed: tuple[int, ...]) -> Int16:
    """With noise of one step of 16 bits, which nobody hears: no cache knows it."""
    noise = np.random.default_rng((1, *seed)).integers(-1, 2, samples.size)
    scaled = np.rint(samples * FULL_SCALE).astype(np.int32) + noise
    return scaled.clip(-FULL_SCALE, FULL_SCALE - 1).astype(np.int16)
