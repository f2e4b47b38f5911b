"""The loads that Whisper servers are compared by, on an engine with random weights: lengths are forced, so what is
written is nonsense and what it takes is not. All audio differs, and counts from the samples on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import numpy as np

from choral.audio.constants import HOP_LENGTH, SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.engine.engine import Engine
from choral.engine.engine_loop import StepRecord
from choral.engine.steps import InProgress, Pending
from choral.engine.window import Decoded, DecodeParams, Window, WindowAudio
from choral.model.tokenizer import Tokenizer

N_RUNS = 3
SHORT_TOKENS, SHORT_S = 27, 10
CALLERS = {10: 10, 50: 73}  # and their requests
SATURATED_WINDOWS, LONG_TOKENS, WINDOW_S = 512, 100, 30


@dataclass(frozen=True)
class Requests:
    """Short requests from callers who each wait for one before they send the next."""

    callers: int
    requests_per_s: float
    mean_latency_ms: float
    first_token_p50_ms: float
    first_token_p95_ms: float


@dataclass(frozen=True)
class Loads:
    requests: tuple[Requests, ...]
    windows_per_s: float  # saturated
    times_real_time: float
    single_ms: float  # one window on an idle engine


class FirstTokens:
    """An observer of the engine that notes when the host first sees a token of each window."""

    def __init__(self) -> None:
        self.seen_s: dict[object, float] = {}  # by the window's future

    def __call__(self, record: StepRecord) -> None:
        now_s = time.perf_counter()
        for task, outcome in zip(record.step.tasks, record.outcomes, strict=True):
            if not isinstance(outcome, InProgress) or outcome.has_tokens:
                self.seen_s.setdefault(task.future, now_s)


class LoadMaker:
    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine, self._eot = engine, tokenizer.eot
        self._noise = np.random.default_rng(0).normal(0, 0.05, WINDOW_SAMPLES + 100_003).astype(np.float32)
        self._n_made = 0

    def measure(self, on_progress: Callable[[str], None]) -> Loads:
        on_progress("one window")
        single = [self.single_s() for _ in range(2 * N_RUNS)][N_RUNS:]
        requests = []
        for n_callers in CALLERS:
            on_progress(f"{n_callers} callers")
            self.requests(n_callers)  # the first run of a load is its warm-up
            runs = sorted((self.requests(n_callers) for _ in range(N_RUNS)), key=lambda run: run.requests_per_s)
            requests.append(runs[N_RUNS // 2])
        on_progress("saturated")
        rates = [self.saturated() for _ in range(N_RUNS)]
        rate = median(rates)
        return Loads(tuple(requests), rate, rate * WINDOW_S, median(single) * 1e3)

    def single_s(self) -> float:
        (window,) = self.windows(1, WINDOW_S, LONG_TOKENS)
        started_s = time.perf_counter()
        self.checked(self._engine.submit(window), LONG_TOKENS)
        seconds = time.perf_counter() - started_s
        self._engine.clear_cache()
        return seconds

    def saturated(self) -> float:
        windows = self.windows(SATURATED_WINDOWS, WINDOW_S, LONG_TOKENS)
        started_s = time.perf_counter()
        pending = [self._engine.submit(window) for window in windows]  # each a caller of its own
        for each in pending:
            self.checked(each, LONG_TOKENS)
        seconds = time.perf_counter() - started_s
        self._engine.clear_cache()
        return SATURATED_WINDOWS / seconds

    def requests(self, n_callers: int) -> Requests:
        windows = self.windows(CALLERS[n_callers], SHORT_S, SHORT_TOKENS)
        times: list[tuple[float, float]] = []
        first_tokens = FirstTokens()
        self._engine.observe(first_tokens)

        def send(window: Window[Decoded]) -> None:
            sent_s = time.perf_counter()
            pending = self._engine.submit(window)
            self.checked(pending, SHORT_TOKENS)
            times.append((first_tokens.seen_s[pending] - sent_s, time.perf_counter() - sent_s))

        started_s = time.perf_counter()
        with ThreadPoolExecutor(n_callers) as pool:
            list(pool.map(send, windows))
        seconds = time.perf_counter() - started_s
        self._engine.observe(None)
        self._engine.clear_cache()
        first, whole = np.array(times).T * 1e3
        p50, p95 = np.percentile(first, [50, 95]).tolist()
        return Requests(n_callers, len(windows) / seconds, float(whole.mean()), p50, p95)

    def windows(self, n: int, seconds: int, n_tokens: int) -> list[Window[Decoded]]:
        n_samples = seconds * SAMPLE_RATE
        params = DecodeParams(language="en", timestamps=False, max_tokens=n_tokens, suppress_tokens=(self._eot,))
        made = []
        for _ in range(n):
            self._n_made += 1
            start = self._n_made % 100_003
            samples = self._noise[start : start + n_samples] * np.float32(1 + self._n_made * 1e-6)
            n_frames = min(WINDOW_MEL_FRAMES, n_samples // HOP_LENGTH)
            made.append(Window(WindowAudio(samples, lead=0, n_mel_frames=n_frames, mel_peak=None), params))
        return made

    def checked(self, pending: Pending[Decoded], n_tokens: int) -> None:
        """A load that was not done is not measured."""
        n_made = len(pending.result().tokens)
        if n_made != n_tokens:
            raise AssertionError(f"{n_made} tokens came back where {n_tokens} were forced")
