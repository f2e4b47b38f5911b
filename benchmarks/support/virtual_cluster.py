"""Engines on a virtual clock: the real engine loop, scheduler and router, with a runner that says how long it took.

An event is a function to call at a time. A GPU's event is one turn of its engine loop: the step runs in no time, and
the next turn is due when the step would have ended. As on a real GPU, several decoder steps are one launch, and the
host reads the tokens of a launch after the next one.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from choral.audio.constants import WINDOW_FRAMES
from choral.engine.capacity import Capacity
from choral.engine.cost_model import CostModel
from choral.engine.engine_loop import EngineLoop, Submitted
from choral.engine.gpu_runner import BURST_S, MAX_BURST_STEPS
from choral.engine.runner import PrefillInput
from choral.engine.steps import Finished, InProgress, Outcome, Pending, WindowTask
from choral.engine.window import (
    Caller,
    Decoded,
    DecodeParams,
    DetectLanguageParams,
    Languages,
    Params,
    Window,
    WindowAudio,
)
from choral.errors import EngineClosed
from choral.ray.host_router import SUSPEND_S, HostRouter, RemoteHost
from support.step_costs import StepTimes

ENCODER_BUDGET = 32_768
MAX_ENCODE_BATCH = ENCODER_BUDGET // WINDOW_FRAMES
CACHE_BYTES, FEATURES_BYTES = 2**30, 1500 * 1280 * 2
NO_SAMPLES = np.zeros(0, np.float32)


class VirtualClock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def call_at(self, at_s: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), function))

    def run(self, until_s: float = float("inf")) -> None:
        """Until nothing is due any more, or the time is over."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, function = heapq.heappop(self._events)
            function()


class VirtualRunner:
    """Takes the time of `StepTimes`; a window has as many tokens as its parameters allow."""

    name, device, compute_type = "virtual", "virtual", "none"

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self.costs = CostModel()
        self.capacity = Capacity(times.n_slots, slot_bytes=1, features_bytes=FEATURES_BYTES, cache_bytes=CACHE_BYTES)
        self.elapsed_s = 0.0  # of the last call
        self._n_left: dict[int, int] = {}  # tokens to come, by slot

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Any]:
        self._take(self.costs.encode.learn, len(audios), self._times.encode_s(len(audios)))
        return [None] * len(audios)

    def prefill(self, inputs: Sequence[PrefillInput]) -> Sequence[Outcome]:
        self._take(self.costs.prefill.learn, len(inputs), self._times.prefill_s(len(inputs)))
        for each in inputs:
            self._n_left[each.slots[0]] = each.params.max_tokens or 1
        return [InProgress()] * len(inputs)

    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        step_s = self._times.decode_s(len(windows))
        n_steps = max(1, min(MAX_BURST_STEPS, round(BURST_S / step_s)))
        self._take(self.costs.decode.learn, len(windows), n_steps * step_s)
        return [self._advance(slots[0], n_steps) for slots in windows]

    def _advance(self, slot: int, n_steps: int) -> Outcome:
        """A window that has all its tokens leaves at the next launch, when the host has seen them."""
        is_seen = self._n_left[slot] <= 0
        self._n_left[slot] -= n_steps
        return Finished(Decoded((), avg_logprob=0.0, no_speech_prob=0.0)) if is_seen else InProgress()

    def align(self, inputs: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        """A window that is only encoded leaves here."""
        return [Finished(Languages({}))] * len(inputs)

    def release(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._n_left.pop(slot, None)

    def _take(self, learn: Callable[[int, float], None], n_items: int, seconds: float) -> None:
        learn(n_items, seconds)
        self.elapsed_s = seconds


class VirtualGpu:
    def __init__(self, clock: VirtualClock, times: StepTimes) -> None:
        self._clock, self._times = clock, times
        self.busy_s = 0.0
        self.is_up = True
        self._start()

    def _start(self) -> None:
        self._runner = VirtualRunner(self._times)
        self._loop = EngineLoop(self._runner, self._runner.capacity, MAX_ENCODE_BATCH)
        self._generation = object()  # turns of an engine that failed are not taken
        self._is_idle = True

    def submit(self, task: WindowTask) -> None:
        self._loop.put(Submitted(task))
        if self._is_idle:
            self._is_idle = False
            generation = self._generation
            self._clock.call_at(self._clock.now_s, lambda: self._turn(generation))

    def _turn(self, generation: object) -> None:
        if generation is not self._generation:
            return
        self._loop.receive(is_idle=False)
        self._runner.elapsed_s = 0.0
        if not self._loop.step():
            self._is_idle = True
            return
        self.busy_s += self._runner.elapsed_s
        self._clock.call_at(self._clock.now_s + self._runner.elapsed_s, lambda: self._turn(generation))

    def fail(self, down_s: float) -> None:
        """All its windows fail now; a new engine is there after a while."""
        self.is_up, loop = False, self._loop
        self._start()
        loop.end()
        self._clock.call_at(self._clock.now_s + down_s, self._restart)

    def _restart(self) -> None:
        self.is_up = True


@dataclass(eq=False)
class VirtualWindow:
    key: bytes
    n_tokens: int  # 0: it is only encoded
    caller: Caller
    on_end: Callable[[], None]
    window: Window[Any] = field(init=False)

    def __post_init__(self) -> None:
        audio = WindowAudio(NO_SAMPLES, lead=0, n_mel_frames=0, mel_peak=None)
        vars(audio)["key"] = self.key
        params = DecodeParams(max_tokens=self.n_tokens) if self.n_tokens else DetectLanguageParams()
        self.window = Window(audio, params)


class VirtualCluster:
    """GPUs behind routers, each of which sees only the windows that it has sent itself."""

    def __init__(self, clock: VirtualClock, times: StepTimes, n_gpus: int, n_routers: int) -> None:
        self.clock = clock
        self.gpus = [VirtualGpu(clock, times) for _ in range(n_gpus)]
        self.routers = [HostRouter(self.gpus) for _ in range(n_routers)]
        self.n_resent = 0

    def submit(self, window: VirtualWindow, router: HostRouter) -> None:
        """Sends it again, as `ClusterEngine` does, when its engine fails."""
        host = router.send(window.key, self.clock.now_s)
        gpu: VirtualGpu = host.handle
        if not gpu.is_up:
            self._send_elsewhere(window, router, host)
            return
        task = WindowTask(window.window, window.caller, Pending())
        task.future.add_done_callback(lambda future: self._end(window, router, host, future))
        gpu.submit(task)

    def _end(self, window: VirtualWindow, router: HostRouter, host: RemoteHost, future: Future[Any]) -> None:
        if isinstance(future.exception(), EngineClosed):
            self._send_elsewhere(window, router, host)
            return
        router.receive(host)
        window.on_end()

    def _send_elsewhere(self, window: VirtualWindow, router: HostRouter, host: RemoteHost) -> None:
        router.receive(host)
        self.n_resent += 1
        delay_s = SUSPEND_S if router.suspend(host, self.clock.now_s) else 0.0
        self.clock.call_at(self.clock.now_s + delay_s, lambda: self.submit(window, router))


class SplitCluster(VirtualCluster):
    """Some of the GPUs only encode, and hand what they made to the others, which only decode."""

    def __init__(
        self,
        clock: VirtualClock,
        times: StepTimes,
        n_gpus: int,
        n_routers: int,
        n_encode_gpus: int,
        hand_over_ms: float,
    ) -> None:
        super().__init__(clock, replace(times, encode_ms=hand_over_ms), n_gpus - n_encode_gpus, n_routers)
        self._encoders = VirtualCluster(clock, times, n_encode_gpus, n_routers)
        self.gpus = [*self._encoders.gpus, *self.gpus]

    def submit(self, window: VirtualWindow, router: HostRouter) -> None:
        decode = super().submit
        encode = VirtualWindow(window.key, 0, window.caller, lambda: decode(window, router))
        self._encoders.submit(encode, self._encoders.routers[self.routers.index(router)])
