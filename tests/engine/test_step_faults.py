"""Out of memory at any point of a step, simulated: windows fail or are retried with the right result.

The whole loop runs in the test's thread, where every call of torch passes through `FailingOps`. Slots, cache and the
runner's own state stay consistent: the windows after the fault get the same tokens as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from choral.engine.engine_loop import EngineLoop, Submitted
from choral.engine.gpu_runner import GpuRunner
from choral.engine.runner import Runner
from choral.engine.steps import Decode, Pending, Prefill, Step, WindowTask
from choral.engine.torch_runner import TorchRunner
from choral.engine.window import Caller, DecodeParams, Window, WindowAudio
from choral.errors import WindowFailed
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer
from real_model import SETTINGS, alone

PARAMS = (
    DecodeParams(language="en", max_tokens=5, n_candidates=3, timestamps=False),
    DecodeParams(language="en", max_tokens=4, temperature=0.8),
)


class FailingOps(TorchFunctionMode):
    """Counts the calls of torch, and fails once at the call of the given number."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.fails_at, self.n_calls = fails_at, 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n_calls += 1
        if self.n_calls == self.fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return func(*args, **(kwargs or {}))


class RealLoop:
    def __init__(self, runner: Runner, audio: WindowAudio) -> None:
        self.loop = EngineLoop(runner, runner.capacity, max_encode_batch=4)
        self._audios = [alone(np.ascontiguousarray(audio.samples[:end])) for end in (176_000, 120_000)]

    def submit(self) -> list[WindowTask]:
        windows = [Window(audio, params) for audio, params in zip(self._audios, PARAMS, strict=True)]
        tasks = [WindowTask(window, Caller(), Pending()) for window in windows]
        for task in tasks:
            self.loop.put(Submitted(task))
        return tasks

    def run(self, kind: type[Step] | None = None, nth: int = 0, ops: FailingOps | None = None) -> None:
        """Run to the end, with `ops` around the nth step of a kind."""
        self.loop.receive(is_idle=False)
        execute, n_seen = self.loop.execute, 0

        def watched(step: Step) -> Any:
            nonlocal n_seen
            n_seen += kind is not None and isinstance(step, kind)
            if ops is None or n_seen != nth + 1 or not isinstance(step, kind):  # type: ignore[arg-type]
                return execute(step)
            with ops:
                return execute(step)

        self.loop.execute = watched  # type: ignore[method-assign]
        try:
            for _ in range(200):
                if not self.loop.step():
                    return
                self.loop.scheduler.check_integrity()
            raise AssertionError("windows never end")
        finally:
            self.loop.execute = execute  # type: ignore[method-assign]


@pytest.fixture(scope="module", params=[TorchRunner, GpuRunner])
def real(
    request: pytest.FixtureRequest, tiny_checkpoint: Checkpoint, tokenizer: Tokenizer, speech: list[WindowAudio]
) -> Iterator[RealLoop]:
    real = RealLoop(request.param(tiny_checkpoint, tokenizer, replace(SETTINGS, slots=8)), speech[0])
    yield real
    real.loop.end()


def tokens(tasks: Sequence[WindowTask]) -> list[tuple[int, ...]]:
    return [task.future.result(0).tokens for task in tasks]


@pytest.mark.parametrize("n_points", [12, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "nth"), [(Prefill, 0), (Decode, 1)])
def test_out_of_memory_at_any_call_of_a_step(real: RealLoop, kind: type[Step], nth: int, n_points: int) -> None:
    reference, counter = real.submit(), FailingOps()
    real.run(kind, nth, counter)
    expected = tokens(reference)
    assert all(expected)
    assert counter.n_calls > n_points
    # The end of a step, where results are applied, at every call; the network before it at some.
    points = {*range(counter.n_calls, counter.n_calls - n_points, -1), counter.n_calls // 2}
    n_failed = 0
    for point in sorted(points):
        tasks, ops = real.submit(), FailingOps(point)
        real.run(kind, nth, ops)
        for task, right in zip(tasks, expected, strict=True):
            if (error := task.future.exception(0)) is None:
                assert task.future.result(0).tokens == right, f"at call {point} of {counter.n_calls}"
            else:
                assert isinstance(error, WindowFailed)
                n_failed += 1
        assert real.loop.scheduler.slots.n_free == real.loop.runner.capacity.n_slots
        assert real.loop.failures.reason is None
    after = real.submit()
    real.run()
    assert tokens(after) == expected
    assert n_failed <= len(points) * len(PARAMS) / 2  # the sampled window is always retried
