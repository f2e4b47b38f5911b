"""Warm-up: run the largest steps once before the first request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from choral.audio.constants import WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.engine.cost_model import StepCost
from choral.engine.engine_loop import EngineLoop
from choral.engine.runner import PrefillInput, Runner
from choral.engine.window import DecodeParams, WindowAudio


def warm_up(loop: EngineLoop) -> None:
    """Run the largest encoder and decoder batches before the first caller does.

    A lack of memory shows here, and the cost model learns what windows take.
    """
    runner, costs = loop.runner, loop.scheduler.costs
    audios = [noise(seed) for seed in range(loop.scheduler.max_encode_batch)]
    features = runner.encode(audios)
    timed(runner, costs.encode, len(audios), lambda: runner.encode(audios))
    slots = [(slot,) for slot in range(runner.capacity.n_slots)]
    params = DecodeParams(language="en", max_tokens=2)
    runner.prefill([PrefillInput(each, features[0], params, audios[0].key) for each in slots])
    timed(runner, costs.decode, len(slots), lambda: runner.decode(slots))
    for each in slots:
        runner.release(each)


def timed(runner: Runner, cost: StepCost, n_items: int, action: Callable[[], Sequence[object]]) -> None:
    started_s = time.perf_counter()
    action()
    if runner.costs is None:
        cost.learn(n_items, time.perf_counter() - started_s)


def noise(seed: int | None) -> WindowAudio:
    samples = np.random.default_rng(seed).normal(0, 0.01, WINDOW_SAMPLES).astype(np.float32)
    return WindowAudio(samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)
