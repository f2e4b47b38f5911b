"""Tries the largest step once, before the first caller does: memory that is not there is found out here.

The steps also tell what windows cost on this device, so that the first real ones are sized right.
"""

from __future__ import annotations

import time

import numpy as np

from choral.audio.constants import WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.engine.engine_loop import EngineLoop
from choral.engine.runner import PrefillInput
from choral.engine.window import DecodeParams, WindowAudio


def try_largest_step(worker: EngineLoop) -> None:
    runner, scheduler = worker.runner, worker.scheduler
    audios = [noise(seed) for seed in range(scheduler.most_encoded_together)]
    features = runner.encode(audios)
    started_s = time.perf_counter()
    runner.encode(audios)
    scheduler.encode_cost.learn(len(audios), runner.took_s or time.perf_counter() - started_s)
    places = [(slot,) for slot in range(runner.capacity.n_slots)]
    params = DecodeParams(language="en", max_tokens=2)
    runner.prefill([PrefillInput(slots, features[0], params, audios[0].key, is_watched=False) for slots in places])
    started_s = time.perf_counter()
    runner.decode(places)
    scheduler.decode_cost.learn(len(places), runner.took_s or time.perf_counter() - started_s)
    for slots in places:
        runner.release(slots)


def noise(seed: int) -> WindowAudio:
    samples = np.random.default_rng(seed).normal(0, 0.01, WINDOW_SAMPLES).astype(np.float32)
    return WindowAudio(samples, lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)
