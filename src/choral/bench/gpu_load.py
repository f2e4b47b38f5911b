"""The loads that Whisper servers are compared by, on an engine with random weights.

The number of tokens is forced: the text is nonsense, but the timing is real. All audio differs; times
start at the samples.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import numpy as np

from choral.audio.constants import HOP_LENGTH, SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.bench.random_model import SHAPES
from choral.engine.engine import Engine
from choral.engine.engine_loop import StepRecord
from choral.engine.steps import InProgress, Pending
from choral.engine.window import Decoded, DecodeParams, Window, WindowAudio
from choral.model.tokenizer import Tokenizer

N_RUNS = 3
SHORT_TOKENS, SHORT_S = 27, 10
REQUESTS_OF_CALLERS = {10: 10, 50: 73}
SATURATED_WINDOWS, LONG_TOKENS, WINDOW_S = 512, 100, 30
N_OFFSETS = 100_003
TRANSFORMERS_BATCH = 64


@dataclass(frozen=True)
class CallersResult:
    """Short requests from callers that each wait for a response before the next request."""

    callers: int
    requests_per_s: float
    mean_latency_ms: float
    first_token_p50_ms: float
    first_token_p95_ms: float


@dataclass(frozen=True)
class GpuLoadResult:
    requests: tuple[CallersResult, ...]
    windows_per_s: float  # saturated
    times_real_time: float
    single_ms: float  # one window on an idle engine


class FirstTokens:
    """An engine observer that records when the first token of each window reaches the host."""

    def __init__(self) -> None:
        self.received_s: dict[object, float] = {}  # by the window's future

    def __call__(self, record: StepRecord) -> None:
        now_s = time.perf_counter()
        for task, outcome in zip(record.step.tasks, record.outcomes, strict=True):
            if not isinstance(outcome, InProgress) or outcome.has_tokens:
                self.received_s.setdefault(task.future, now_s)


class GpuLoadGenerator:
    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine, self._eot = engine, tokenizer.eot
        self._noise = np.random.default_rng(0).normal(0, 0.05, WINDOW_SAMPLES + N_OFFSETS).astype(np.float32)
        self._n_made, self._making = 0, threading.Lock()

    def measure(self, on_progress: Callable[[str], None]) -> GpuLoadResult:
        on_progress("one window")
        single_s = [self.run_windows(1) for _ in range(2 * N_RUNS)][N_RUNS:]
        requests = []
        for n_callers in REQUESTS_OF_CALLERS:
            on_progress(f"{n_callers} callers")
            self.run_callers(n_callers)  # warm-up
            runs = sorted((self.run_callers(n_callers) for _ in range(N_RUNS)), key=lambda run: run.requests_per_s)
            requests.append(runs[N_RUNS // 2])
        on_progress("saturated")
        rate = median(SATURATED_WINDOWS / self.run_windows(SATURATED_WINDOWS) for _ in range(N_RUNS))
        return GpuLoadResult(tuple(requests), rate, rate * WINDOW_S, median(single_s) * 1e3)

    def run_windows(self, n_windows: int) -> float:
        """Seconds for this many windows at once, each with its own caller."""
        windows = self.make_windows(n_windows, WINDOW_S, LONG_TOKENS)
        started_s = time.perf_counter()
        pending = [self._engine.submit(window) for window in windows]
        for each in pending:
            self.wait_checked(each, LONG_TOKENS)
        seconds = time.perf_counter() - started_s
        self._engine.clear_cache()
        return seconds

    def run_short_window(self) -> None:
        """One short request, from any thread."""
        with self._making:
            (window,) = self.make_windows(1, SHORT_S, SHORT_TOKENS)
        self.wait_checked(self._engine.submit(window), SHORT_TOKENS)

    def run_callers(self, n_callers: int) -> CallersResult:
        windows = self.make_windows(REQUESTS_OF_CALLERS[n_callers], SHORT_S, SHORT_TOKENS)
        times: list[tuple[float, float]] = []
        first_tokens = FirstTokens()
        self._engine.observe(first_tokens)

        def send(window: Window[Decoded]) -> None:
            sent_s = time.perf_counter()
            pending = self._engine.submit(window)
            self.wait_checked(pending, SHORT_TOKENS)
            times.append((first_tokens.received_s[pending] - sent_s, time.perf_counter() - sent_s))

        started_s = time.perf_counter()
        with ThreadPoolExecutor(n_callers) as pool:
            list(pool.map(send, windows))
        seconds = time.perf_counter() - started_s
        self._engine.observe(None)
        self._engine.clear_cache()
        first_ms, latency_ms = np.array(times).T * 1e3
        p50, p95 = np.percentile(first_ms, [50, 95]).tolist()
        return CallersResult(n_callers, len(windows) / seconds, float(latency_ms.mean()), p50, p95)

    def make_windows(self, n_windows: int, seconds: int, n_tokens: int) -> list[Window[Decoded]]:
        n_samples = seconds * SAMPLE_RATE
        params = DecodeParams(language="en", timestamps=False, max_tokens=n_tokens, suppress_tokens=(self._eot,))
        windows = []
        for _ in range(n_windows):
            self._n_made += 1
            start = self._n_made % N_OFFSETS
            samples = self._noise[start : start + n_samples] * np.float32(1 + self._n_made * 1e-6)
            n_frames = min(WINDOW_MEL_FRAMES, n_samples // HOP_LENGTH)
            windows.append(Window(WindowAudio(samples, lead=0, n_mel_frames=n_frames, mel_peak=None), params))
        return windows

    def wait_checked(self, pending: Pending[Decoded], n_tokens: int) -> None:
        """Wait for the result and check its length, so that an incomplete load does not count."""
        n_returned = len(pending.result().tokens)
        if n_returned != n_tokens:
            raise AssertionError(f"{n_returned} tokens were returned, but {n_tokens} were forced")


def transformers_windows_per_s(shape: str, device: str) -> float:
    """Hugging Face's transformers with static batches of 64 and the same number of tokens, from mel features."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from choral.bench.peer_transformers import config_settings

    dims = SHAPES[shape]
    with torch.device(device):
        model: torch.nn.Module = WhisperForConditionalGeneration(WhisperConfig(**config_settings(dims)))
    model.to(torch.bfloat16).eval()
    features = torch.randn(TRANSFORMERS_BATCH, dims.n_mels, 3000, device=device, dtype=torch.bfloat16)
    prompt = torch.full((TRANSFORMERS_BATCH, 4), 50_258, device=device)

    def generate(n_tokens: int) -> None:
        model.generate(  # type: ignore[operator]
            input_features=features,
            decoder_input_ids=prompt,
            min_new_tokens=n_tokens,
            max_new_tokens=n_tokens,
            do_sample=False,
        )
        torch.cuda.synchronize(device)

    with torch.inference_mode():
        generate(3)  # warm-up
        started_s = time.perf_counter()
        generate(LONG_TOKENS)
        return TRANSFORMERS_BATCH / (time.perf_counter() - started_s)
