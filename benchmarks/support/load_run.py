"""One virtual cluster with one load: who sends windows when, when they end, and what that makes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from choral.engine.window import Caller
from support.step_costs import StepTimes
from support.virtual_cluster import SplitCluster, VirtualClock, VirtualCluster, VirtualGpu, VirtualWindow

SAMPLE_BYTES = 16_000 * 4  # a second; samples are sent to engines as float32
HAND_OVER_MS = 0.2  # 3.84 MB over PCIe at about 20 GB/s


@dataclass(frozen=True)
class SimulatedLoad:
    load: str
    model: str
    n_gpus: int
    virtual_s: float
    windows: int
    windows_per_s: float
    times_real_time: float
    p50_s: float
    p99_s: float
    busy_share: float
    sample_bytes_per_s: float  # from where audio is decoded to the engines
    resent: int
    failures: int


class LoadRun:
    def __init__(
        self,
        times: StepTimes,
        n_gpus: int,
        n_routers: int,
        seed: int,
        n_encode_gpus: int = 0,
        hand_over_ms: float = HAND_OVER_MS,
    ) -> None:
        self.clock, self.dice = VirtualClock(), random.Random(seed)
        random.seed(seed)  # the router's choice between equals
        if n_encode_gpus:
            split = partial(SplitCluster, n_encode_gpus=n_encode_gpus, hand_over_ms=hand_over_ms)
            self.cluster: VirtualCluster = split(self.clock, times, n_gpus, n_routers)
        else:
            self.cluster = VirtualCluster(self.clock, times, n_gpus, n_routers)
        self.times, self.n_failures = times, 0
        self.ends: list[tuple[float, float]] = []  # of windows: when they ended, and how long they took
        self._numbers = itertools.count()

    def send(self, n_tokens: int, caller: Caller, on_end: Callable[[], None] = lambda: None) -> None:
        started_s = self.clock.now_s
        router = self.cluster.routers[id(caller) // 64 % len(self.cluster.routers)]

        def end() -> None:
            self.ends.append((self.clock.now_s, self.clock.now_s - started_s))
            on_end()

        key = next(self._numbers).to_bytes(8, "little")
        self.cluster.submit(VirtualWindow(key, n_tokens, caller, end), router)

    def fail_at_random(self, per_hour: float, down_s: float, until_s: float) -> None:
        for gpu in self.cluster.gpus:
            at_s = 0.0
            while per_hour and (at_s := at_s + self.dice.expovariate(per_hour / 3600)) < until_s:
                self.clock.call_at(at_s, partial(self._fail, gpu, down_s))

    def _fail(self, gpu: VirtualGpu, down_s: float) -> None:
        self.n_failures += 1
        gpu.fail(down_s)

    def result(self, load: str, window_s: float, warm_up_s: float = 0.0) -> SimulatedLoad:
        """Of the time after the warm-up, in which nothing ends at first and then much at once."""
        seconds = self.clock.now_s
        latencies_s = [latency_s for ended_s, latency_s in self.ends if ended_s >= warm_up_s]
        n = len(latencies_s)
        p50_s, p99_s = np.percentile(latencies_s, [50, 99]) if n else (math.nan, math.nan)
        busy_s = sum(gpu.busy_s for gpu in self.cluster.gpus)
        rate = n / (seconds - warm_up_s)
        return SimulatedLoad(
            load=load,
            model=self.times.name,
            n_gpus=len(self.cluster.gpus),
            virtual_s=seconds,
            windows=n,
            windows_per_s=rate,
            times_real_time=rate * window_s,
            p50_s=float(p50_s),
            p99_s=float(p99_s),
            busy_share=busy_s / seconds / len(self.cluster.gpus),
            sample_bytes_per_s=rate * window_s * SAMPLE_BYTES,
            resent=self.cluster.n_resent,
            failures=self.n_failures,
        )
