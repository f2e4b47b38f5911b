"""How an engine takes a load: many windows queued at once, from one to thousands.

`measure` runs one load after another and tells throughput, how full the batch was, memory, and what the engine itself
took between steps. `own_time` measures the same engine without a network: what it takes to decide and to keep the
books, whatever the model. All windows differ in content, so that each is encoded.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.bench.idle_runner import IdleRunner
from choral.bench.material import Material
from choral.bench.memory import PeakMemory
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.engine_loop import StepRecord
from choral.engine.group import AnyEngine
from choral.engine.steps import Decode
from choral.engine.window import Caller, DecodeParams, Window, WindowAudio
from choral.errors import UsageError

FLAT_FROM, FLAT_WITHIN = 64, 0.10
FULL_BATCH, MOST_OWN_SHARE = 64, 0.05
OWN_TOKENS = 32
OWN_LOADS = ((64, 64), (4096, 1), (4096, 64), (4096, 4096))  # windows, callers
WARM_UP_WINDOWS = 2

OnStep = Callable[[StepRecord], None]


@dataclass(frozen=True)
class Load:
    """How one number of windows went. What is `at_full` is the median of the steps with the most rows."""

    windows: int
    callers: int
    seconds: float
    cpu_s: float  # of all threads: what a busy machine does not change
    windows_per_s: float
    audio_s_per_s: float
    tokens: int
    encoded: int
    cache_hits: int
    decoder_steps: int
    mean_rows: float
    rows_at_full: int
    step_ms_at_full: float  # in the network
    own_us_at_full: float  # between two steps: to tell what was decided, and to decide what is next
    deciding_us_at_full: float  # of it, to decide
    busy_share: float
    peak_bytes: int  # of this process
    cache_bytes: int

    @property
    def own_share_at_full(self) -> float:
        own_ms = self.own_us_at_full / 1e3
        return own_ms / (own_ms + self.step_ms_at_full)


@dataclass(frozen=True)
class OwnTime:
    """What the engine takes for itself with so many windows of so many callers waiting."""

    windows: int
    callers: int
    rows: int
    step_us: float  # a decoder step of this many rows
    deciding_us: float  # of it, to decide
    entry_us: float  # to let one window in and have it encoded


class Meter:
    """Remembers of every step what is needed afterwards, and nothing that keeps a window alive."""

    def __init__(self, also: OnStep | None = None) -> None:
        self.steps: list[tuple[int, float, float, float]] = []  # rows (0: no decoder step), start, stop, deciding
        self._also = also

    def __call__(self, record: StepRecord) -> None:
        step = record.step
        n_rows = sum(len(task.slots) for task in step.tasks) if isinstance(step, Decode) else 0
        stop_s = record.started_s + record.run_s
        self.steps.append((n_rows, record.started_s, stop_s, record.scheduling_s))
        if self._also is not None:
            self._also(record)

    def at_full(self) -> tuple[int, float, float, float]:
        """The largest batch, and the usual seconds of its steps: in the network, around it, and to decide."""
        most_rows = max((rows for rows, *_ in self.steps), default=0)
        full = [(before, step) for before, step in pairwise(self.steps) if step[0] == most_rows > 0]
        if not full:
            return most_rows, 0.0, 0.0, 0.0
        runs = [stop_s - start_s for _, (_, start_s, stop_s, _) in full]
        gaps = [step[1] - before[2] for before, step in full]
        return most_rows, median(runs), median(gaps), median(step[3] for _, step in full)

    def outside_decoding_s(self) -> float:
        """What was spent around all steps but those of the decoder."""
        return sum(step[1] - before[2] for before, step in pairwise(self.steps) if not step[0])


def measure(
    engine: AnyEngine,
    material: Material,
    counts: Sequence[int],
    *,
    n_callers: int | None = None,
    max_tokens: int = 64,
    on_step: OnStep | None = None,
    on_load: Callable[[Load], None] = lambda load: None,
) -> list[Load]:
    """One load after the other; `on_step` sees the last one. Without `n_callers` every window has one of its own."""
    params = DecodeParams(language="en", max_tokens=max_tokens)
    first = run_load(engine, material, params, WARM_UP_WINDOWS, first_number=0)
    next_number = first.windows
    loads: list[Load] = []
    for count in counts:
        is_last = len(loads) == len(counts) - 1
        observer = on_step if is_last else None
        load = run_load(
            engine, material, params, count, first_number=next_number, n_callers=n_callers, on_step=observer
        )
        next_number += count
        loads.append(load)
        on_load(load)
    return loads


def run_load(
    engine: AnyEngine,
    material: Material,
    params: DecodeParams,
    n_windows: int,
    *,
    first_number: int,
    n_callers: int | None = None,
    on_step: OnStep | None = None,
) -> Load:
    if n_windows > engine.settings.queue_limit:
        raise UsageError(f"{n_windows} windows are more than the queue of {engine.settings.queue_limit} takes")
    windows = [Window(material.window(first_number + index), params) for index in range(n_windows)]
    callers = share_out(n_windows, n_callers)
    meter, before = Meter(on_step), engine.stats
    gc.collect()
    engine.observe(meter)
    with PeakMemory() as memory:
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        futures = [engine.submit(window, caller) for window, caller in zip(windows, callers, strict=True)]
        wait(futures)
        seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    engine.observe(None)
    after = engine.stats
    n_rows, step_s, own_s, deciding_s = meter.at_full()
    n_steps = after.steps - before.steps
    return Load(
        windows=n_windows,
        callers=len(set(callers)),
        seconds=seconds,
        cpu_s=cpu_s,
        windows_per_s=n_windows / seconds,
        audio_s_per_s=sum(window.audio.samples.size for window in windows) / SAMPLE_RATE / seconds,
        tokens=sum(len(future.result().tokens) for future in futures),
        encoded=after.encoded - before.encoded,
        cache_hits=after.cache_hits - before.cache_hits,
        decoder_steps=n_steps,
        mean_rows=(after.rows - before.rows) / max(1, n_steps),
        rows_at_full=n_rows,
        step_ms_at_full=step_s * 1e3,
        own_us_at_full=own_s * 1e6,
        deciding_us_at_full=deciding_s * 1e6,
        busy_share=(after.busy_s - before.busy_s) / seconds,
        peak_bytes=memory.peak_bytes,
        cache_bytes=after.cache_bytes,
    )


def share_out(n_windows: int, n_callers: int | None) -> list[Caller]:
    """Whose each window is: all have one, or the first of several callers has half, and the others take turns."""
    if n_callers is None or n_callers >= n_windows:
        return [Caller() for _ in range(n_windows)]
    callers = [Caller() for _ in range(n_callers)]
    if n_callers == 1:
        return callers * n_windows
    n_first = n_windows // 2
    return [callers[0]] * n_first + [callers[1 + index % (n_callers - 1)] for index in range(n_windows - n_first)]


def own_time(n_windows: int, n_callers: int, n_slots: int = FULL_BATCH) -> OwnTime:
    """The engine on a runner that does nothing, with audio that takes no time."""
    engine = Engine(IdleRunner(n_slots, OWN_TOKENS), EngineSettings(warm_up=False))
    windows = [Window(tick(index), DecodeParams()) for index in range(n_windows)]
    callers = [Caller() for _ in range(n_callers)]
    meter = Meter()
    gc.collect()
    try:
        engine.observe(meter)
        wait([engine.submit(window, callers[index % n_callers]) for index, window in enumerate(windows)])
    finally:
        engine.close()
    n_rows, _, own_s, deciding_s = meter.at_full()
    entry_s = meter.outside_decoding_s() / n_windows
    return OwnTime(n_windows, n_callers, n_rows, own_s * 1e6, deciding_s * 1e6, entry_s * 1e6)


def tick(number: int) -> WindowAudio:
    """A single sample, another one for every number."""
    return WindowAudio(np.array([number], dtype=np.float32), lead=0, n_mel_frames=1, mel_peak=None)


def is_flat(loads: Sequence[Load]) -> bool | None:
    """Whether throughput stays the same from 64 windows up; None: too few loads to tell."""
    speeds = [load.windows_per_s for load in loads if load.windows >= FLAT_FROM]
    return None if len(speeds) < 2 else 1 - min(speeds) / max(speeds) <= FLAT_WITHIN


def own_share(loads: Sequence[Load], own: Sequence[OwnTime]) -> float:
    """The engine's own part of a full step: of what it takes for 64 rows, and the longest step that was measured.

    Where an engine has fewer places, its step is shorter than one of 64 rows, so that the share is rather too large.
    """
    own_ms = max(one.step_us for one in own) / 1e3
    return own_ms / (own_ms + max(load.step_ms_at_full for load in loads))
