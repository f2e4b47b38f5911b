"""How an engine handles load: from one to thousands of windows queued at once.

`measure` runs one load after another: throughput, batch size, memory, and the engine's overhead between steps.
`measure_overhead` runs the engine without a network: what scheduling and bookkeeping cost, for any model. All
windows differ in content, so that each is encoded.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from choral.audio.constants import SAMPLE_RATE
from choral.bench.null_runner import NullRunner
from choral.bench.process_tree import PeakMemory
from choral.bench.workload import Workload
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.engine_loop import StepRecord
from choral.engine.group import LocalEngine
from choral.engine.steps import Decode
from choral.engine.window import Caller, DecodeParams, Window, WindowAudio
from choral.errors import MissingDependency, UsageError

FLAT_FROM, FLAT_WITHIN = 64, 0.10
FULL_BATCH, MAX_OVERHEAD_SHARE = 64, 0.05
OVERHEAD_TOKENS = 32
OVERHEAD_LOADS = ((64, 64), (4096, 1), (4096, 64), (4096, 4096))  # windows, callers
WARM_UP_WINDOWS = 2

OnStep = Callable[[StepRecord], None]


@dataclass(frozen=True)
class LoadResult:
    """The result of one number of windows; `at_full` figures are medians of the steps with the most rows."""

    windows: int
    callers: int
    seconds: float
    cpu_s: float  # of all threads: other load on the machine hardly changes it
    windows_per_s: float
    audio_s_per_s: float
    tokens: int
    encoded: int
    cache_hits: int
    decoder_steps: int
    mean_rows: float
    rows_at_full: int
    step_ms_at_full: float  # in the network
    overhead_us_at_full: float  # between two steps: apply the outcomes, and schedule the next step
    schedule_us_at_full: float  # the part of it spent on scheduling
    busy_share: float
    peak_bytes: int  # of this process
    cache_bytes: int

    @property
    def overhead_share_at_full(self) -> float:
        own_ms = self.overhead_us_at_full / 1e3
        return own_ms / (own_ms + self.step_ms_at_full)


@dataclass(frozen=True)
class EngineOverhead:
    """The engine's own time with this many windows of this many callers waiting."""

    windows: int
    callers: int
    rows: int
    step_us: float  # a decoder step of this many rows
    schedule_us: float  # the part of it spent on scheduling
    admit_us: float  # to admit one window and have it encoded


class StepTimes:
    """Keeps the times of every step, and nothing that keeps a window alive."""

    def __init__(self, on_step: OnStep | None = None) -> None:
        self.steps: list[tuple[int, float, float, float]] = []  # rows (0: not a decoder step), start, stop, scheduling
        self._on_step = on_step

    def __call__(self, record: StepRecord) -> None:
        step = record.step
        n_rows = sum(len(task.slots) for task in step.tasks) if isinstance(step, Decode) else 0
        stop_s = record.started_s + record.run_s
        self.steps.append((n_rows, record.started_s, stop_s, record.scheduling_s))
        if self._on_step is not None:
            self._on_step(record)

    def at_full(self) -> tuple[int, float, float, float]:
        """The largest batch, and the median seconds of its steps: in the network, between steps, and for scheduling."""
        max_rows = max((rows for rows, *_ in self.steps), default=0)
        full = [(before, step) for before, step in pairwise(self.steps) if step[0] == max_rows > 0]
        if not full:
            return max_rows, 0.0, 0.0, 0.0
        runs = [stop_s - start_s for _, (_, start_s, stop_s, _) in full]
        gaps = [step[1] - before[2] for before, step in full]
        return max_rows, median(runs), median(gaps), median(step[3] for _, step in full)

    def outside_decoding_s(self) -> float:
        """Seconds spent around all steps but those of the decoder."""
        return sum(step[1] - before[2] for before, step in pairwise(self.steps) if not step[0])


def measure(
    engine: LocalEngine,
    workload: Workload,
    counts: Sequence[int],
    *,
    n_callers: int | None = None,
    max_tokens: int = 64,
    on_step: OnStep | None = None,
    on_load: Callable[[LoadResult], None] = lambda load: None,
) -> list[LoadResult]:
    """`on_step` observes the last load. Without `n_callers` every window has its own caller."""
    params = DecodeParams(language="en", max_tokens=max_tokens)
    first = run_load(engine, workload, params, WARM_UP_WINDOWS, first_number=0)
    next_number = first.windows
    loads: list[LoadResult] = []
    for count in counts:
        last = on_step if len(loads) == len(counts) - 1 else None
        load = run_load(engine, workload, params, count, first_number=next_number, n_callers=n_callers, on_step=last)
        next_number += count
        loads.append(load)
        on_load(load)
    return loads


def run_load(
    engine: LocalEngine,
    workload: Workload,
    params: DecodeParams,
    n_windows: int,
    *,
    first_number: int,
    n_callers: int | None = None,
    on_step: OnStep | None = None,
) -> LoadResult:
    if n_windows > engine.settings.queue_limit:
        raise UsageError(f"{n_windows} windows are more than the queue of {engine.settings.queue_limit} holds")
    windows = [Window(workload.window(first_number + index), params) for index in range(n_windows)]
    callers = assign_callers(n_windows, n_callers)
    step_times, before = StepTimes(on_step), engine.stats
    gc.collect()
    engine.observe(step_times)
    with PeakMemory() as memory:
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        futures = [engine.submit(window, caller) for window, caller in zip(windows, callers, strict=True)]
        wait(futures)
        seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    engine.observe(None)
    after = engine.stats
    n_rows, step_s, own_s, deciding_s = step_times.at_full()
    n_steps = after.steps - before.steps
    return LoadResult(
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
        overhead_us_at_full=own_s * 1e6,
        schedule_us_at_full=deciding_s * 1e6,
        busy_share=(after.busy_s - before.busy_s) / seconds,
        peak_bytes=memory.peak_bytes,
        cache_bytes=after.cache_bytes,
    )


def assign_callers(n_windows: int, n_callers: int | None) -> list[Caller]:
    """The caller of each window: one each, or of several callers the first has half and the others take turns."""
    if n_callers is None or n_callers >= n_windows:
        return [Caller() for _ in range(n_windows)]
    callers = [Caller() for _ in range(n_callers)]
    if n_callers == 1:
        return callers * n_windows
    n_first = n_windows // 2
    return [callers[0]] * n_first + [callers[1 + index % (n_callers - 1)] for index in range(n_windows - n_first)]


def measure_overhead(n_windows: int, n_callers: int, n_slots: int = FULL_BATCH) -> EngineOverhead:
    """Run the engine on a runner that does nothing, with audio that takes no time."""
    engine = Engine(NullRunner(n_slots, OVERHEAD_TOKENS), EngineSettings(warm_up=False))
    windows = [Window(tiny_audio(index), DecodeParams()) for index in range(n_windows)]
    callers = [Caller() for _ in range(n_callers)]
    step_times = StepTimes()
    gc.collect()
    try:
        engine.observe(step_times)
        wait([engine.submit(window, callers[index % n_callers]) for index, window in enumerate(windows)])
    finally:
        engine.close()
    n_rows, _, own_s, deciding_s = step_times.at_full()
    entry_s = step_times.outside_decoding_s() / n_windows
    return EngineOverhead(n_windows, n_callers, n_rows, own_s * 1e6, deciding_s * 1e6, entry_s * 1e6)


def tiny_audio(number: int) -> WindowAudio:
    """A single sample, different for every number."""
    return WindowAudio(np.array([number], dtype=np.float32), lead=0, n_mel_frames=1, mel_peak=None)


def is_flat(loads: Sequence[LoadResult]) -> bool | None:
    """Whether throughput stays within a tenth from 64 windows up; None: too few loads."""
    speeds = [load.windows_per_s for load in loads if load.windows >= FLAT_FROM]
    return None if len(speeds) < 2 else 1 - min(speeds) / max(speeds) <= FLAT_WITHIN


def overhead_share(loads: Sequence[LoadResult], overheads: Sequence[EngineOverhead]) -> float:
    """The engine's share of a step: its overhead for 64 rows, relative to the longest measured step.

    An engine with fewer slots has shorter steps, so the share is overstated there.
    """
    own_ms = max(one.step_us for one in overheads) / 1e3
    return own_ms / (own_ms + max(load.step_ms_at_full for load in loads))


def require_matplotlib() -> Any:
    """Return matplotlib.pyplot; called early, so that a missing package fails before the measurement."""
    try:
        importlib.import_module("matplotlib").use("Agg")  # draw to files, without a display
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise MissingDependency("--plot needs matplotlib: pip install 'choral[bench]'") from error


def plot(path: Path, title: str, loads: Sequence[LoadResult], overheads: Sequence[EngineOverhead]) -> None:
    """A PNG of throughput and overhead by the number of windows."""
    pyplot = require_matplotlib()
    figure, (speed, overhead) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    counts = [load.windows for load in loads]
    speed.plot(counts, [load.windows_per_s for load in loads], marker="o")
    speed.set(xlabel="windows queued at once", ylabel="windows per second", xscale="log", ylim=(0, None))
    overhead.plot(counts, [load.overhead_us_at_full for load in loads], marker="o", label="with the model")
    overhead.plot([one.windows for one in overheads], [one.step_us for one in overheads], "s", label="alone, 64 rows")
    overhead.set(xlabel="windows queued at once", ylabel="engine overhead, µs per step", xscale="log", ylim=(0, None))
    overhead.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
