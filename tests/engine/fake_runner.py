"""A runner without a network, for faults and timing: each window follows a plan that the test sets.

It checks the engine's side of the `Runner` contract: no slot is used twice, only prefilled windows are decoded, and
cached audio is not encoded again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from choral.config import EngineSettings
from choral.engine.capacity import Capacity
from choral.engine.cost_model import CostModel
from choral.engine.encoder_cache import EncoderCache
from choral.engine.engine import Engine
from choral.engine.runner import PrefillInput
from choral.engine.steps import Failed, Finished, InProgress, Outcome
from choral.engine.window import (
    Aligned,
    AlignParams,
    Decoded,
    DecodeParams,
    DetectLanguageParams,
    Languages,
    Params,
    Window,
    WindowAudio,
)
from choral.errors import WindowFailed

FEATURES_BYTES = 10
SOON_S = 20
Fault = Literal["raise", "answer"]  # the whole call fails, or one window in it


@dataclass
class Plan:
    """The outcome of a window; windows are identified by the seed of their params."""

    n_tokens: int = 3
    fault: Fault | None = None


@dataclass
class Running:
    start: PrefillInput
    tokens: tuple[int, ...] = ()


@dataclass
class Clock:
    """Replaces the module `time`."""

    now_s: float = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@dataclass
class Seconds:
    """How long calls take on the fake clock."""

    encode: float = 0.0  # each audio
    decode: float = 0.001  # a step of any other kind
    row: float = 0.0  # each row of a decoder step, besides


def silent(call: str) -> None:
    pass


@dataclass
class FakeRunner:
    n_slots: int = 8
    n_cached: int = 4
    n_lanes: int = field(default=1, kw_only=True)
    seconds: Seconds = field(default_factory=Seconds)
    clock: Clock = field(default_factory=Clock)
    plans: dict[int, Plan] = field(default_factory=dict)
    bad_audio: set[bytes] = field(default_factory=set)
    on_call: Callable[[str], None] = silent  # may wait: then the step takes that long
    known: EncoderCache[Any] | frozenset[bytes] = frozenset()  # audio that must not be encoded again
    encoded: list[int] = field(default_factory=list)  # how many audios each call had
    running: dict[tuple[int, ...], Running] = field(default_factory=dict)
    costs: CostModel | None = None
    name: str = "fake"
    device: str = "cpu"
    compute_type: str = "float32"

    def __post_init__(self) -> None:
        self.capacity = Capacity(self.n_slots, 1000, FEATURES_BYTES, self.n_cached * FEATURES_BYTES, self.n_lanes)

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[bytes]:
        self.on_call("encode")
        self.clock.now_s += self.seconds.encode * len(audios)
        keys = [audio.key for audio in audios]
        assert len(set(keys)) == len(keys) > 0
        assert not any(key in self.known for key in keys)
        if self.bad_audio.intersection(keys):
            raise RuntimeError("out of memory")
        self.encoded.append(len(keys))
        return keys

    def prefill(self, starts: Sequence[PrefillInput]) -> Sequence[Outcome]:
        self.on_call("prefill")
        self.clock.now_s += self.seconds.decode
        taken = [slot for slots in self.running for slot in slots]
        new = [slot for start in starts for slot in start.slots]
        assert len({*taken, *new}) == len(taken) + len(new) <= self.n_slots
        assert all(start.features == start.audio_key for start in starts)
        self.check_faults([self.plan(start.params) for start in starts])
        self.running |= {start.slots: Running(start) for start in starts}
        return [self.advance(self.running[start.slots]) for start in starts]

    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        self.on_call("decode")
        assert len(set(windows)) == len(windows) > 0
        self.clock.now_s += self.seconds.decode + self.seconds.row * sum(map(len, windows))
        self.check_faults([self.plan(self.running[slots].start.params) for slots in windows])
        return [self.advance(self.running[slots]) for slots in windows]

    def align(self, known: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        self.on_call("align")
        self.clock.now_s += self.seconds.decode
        self.check_faults([self.plan(params) for _, params in known])
        return [self.answer(params) for _, params in known]

    def release(self, slots: tuple[int, ...]) -> None:
        self.running.pop(slots, None)

    def plan(self, params: Params[Any]) -> Plan:
        number = (
            params.seed
            if isinstance(params, DecodeParams)
            else params.text_tokens[0]
            if isinstance(params, AlignParams)
            else -1
        )
        return self.plans.setdefault(number, Plan())

    def check_faults(self, plans: Sequence[Plan]) -> None:
        if any(plan.fault == "raise" for plan in plans):
            raise RuntimeError("the device is lost")

    def advance(self, running: Running) -> Outcome:
        plan = self.plan(running.start.params)
        if plan.fault == "answer":
            return Failed(WindowFailed("not a number"))
        running.tokens = (*running.tokens, len(running.tokens))
        if len(running.tokens) >= plan.n_tokens:
            return Finished(Decoded(running.tokens, -0.5, 0.1))
        return InProgress(has_tokens=True)

    def answer(self, params: Params[Any]) -> Outcome:
        if self.plan(params).fault == "answer":
            return Failed(WindowFailed("not a number"))
        if isinstance(params, DetectLanguageParams):
            return Finished(Languages({"en": 1.0}))
        return Finished(Aligned(np.zeros((1, 1, 1), np.float32), 1, np.ones(1, np.float32)))


def audio(number: int) -> WindowAudio:
    return WindowAudio(np.full(4, number, np.float32), lead=0, n_mel_frames=1, mel_peak=None)


class Gate:
    """Holds the engine's thread at the start of calls of one kind, until it is opened."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.is_reached, self.is_open = threading.Event(), threading.Event()

    def __call__(self, call: str) -> None:
        if call == self.call:
            self.is_reached.set()
            assert self.is_open.wait(SOON_S)


class Reached:
    """Set when the engine's thread starts a call of one kind; does not hold it."""

    def __init__(self, call: str) -> None:
        self.call, self.event = call, threading.Event()

    def __call__(self, call: str) -> None:
        if call == self.call:
            self.event.set()

    def wait(self) -> None:
        assert self.event.wait(SOON_S)


def window(number: int, n_slots: int = 1) -> Window[Decoded]:
    return Window(audio(number), DecodeParams(seed=number, n_candidates=n_slots))


def engine_on(runner: FakeRunner, **settings: Any) -> Engine:
    return Engine(runner, EngineSettings(**settings))
