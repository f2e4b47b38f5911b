"""Out of memory in the middle of a step, simulated at every allocation: no window fails that fits alone.

A batch that fails is retried window by window, which gives the right results only if the failed attempt has changed
nothing. The steps run in the test's thread, where every operation of torch passes through `OutOfMemory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from choral.audio.constants import SAMPLE_RATE
from choral.engine.ct2_runner import Ct2Runner
from choral.engine.engine_loop import EngineLoop
from choral.engine.gpu_runner import GpuRunner
from choral.engine.steps import Align, Decode, Encode, Failed, Finished, Pending, Prefill, Step, WindowTask
from choral.engine.torch_runner import TorchRunner
from choral.engine.window import AlignParams, Caller, DecodeParams, Params, Window, WindowAudio
from choral.model.checkpoint import Checkpoint
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from random_model import random_checkpoint
from real_model import SETTINGS, alone

DIMS = ModelDims(80, 1500, 64, 2, 1, 51865, 448, 64, 2, 2)
BEAMS = DecodeParams(language="en", n_candidates=3, timestamps=False)
SAMPLES = DecodeParams(language="en", n_candidates=2, temperature=0.8)
GREEDY = DecodeParams(language="en", prompt=(400, 500))
TEXT = AlignParams(text_tokens=(1000, 2000, 3000), n_frames=500, language="en", task="transcribe")


class OutOfMemory(TorchDispatchMode):
    """Counts the operations that allocate memory, and fails once, at the one of the given number."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self._fails_at, self.n_operations = fails_at, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Views and writes in place return what they were given, and allocate nothing.
        if any(returned.alias_info is None for returned in func._schema.returns):
            self.n_operations += 1
            if self.n_operations == self._fails_at:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return func(*args, **(kwargs or {}))


class Batch:
    """Windows that go through every step together."""

    def __init__(self, loop: EngineLoop, audios: Sequence[WindowAudio], params: Sequence[Params[Any]]) -> None:
        self._loop = loop
        windows = [Window(audio, each) for audio, each in zip(audios, params, strict=True)]
        self.tasks = tuple(WindowTask(window, Caller(), Pending()) for window in windows)
        free_slots = iter(range(loop.runner.capacity.n_slots))
        for task in self.tasks:
            task.slots = tuple(islice(free_slots, task.n_slots))
        self.results: dict[WindowTask, Any] = {}

    @property
    def unfinished(self) -> tuple[WindowTask, ...]:
        return tuple(task for task in self.tasks if task not in self.results)

    def run(self, kind: type[Step], faults: OutOfMemory | None = None) -> None:
        step = kind(self.unfinished)
        with faults or nullcontext():
            outcomes = self._loop.attempt(step.tasks, self._loop.action(step))
        for task, outcome in zip(step.tasks, outcomes, strict=True):
            assert not isinstance(outcome, Failed), outcome.error
            if isinstance(outcome, Finished):
                self.results[task] = outcome.result

    def decode(self, faults: Iterable[OutOfMemory | None] = ()) -> list[tuple[int, ...]]:
        """The tokens of each window; `faults` has those of each step."""
        faults = iter(faults)
        while self.unfinished:
            self.run(Decode, next(faults, None))
        return [self.results[task].tokens for task in self.tasks]


@dataclass(frozen=True)
class Batches:
    loop: EngineLoop
    audios: Sequence[WindowAudio]

    def new(self, *params: Params[Any]) -> Batch:
        return Batch(self.loop, self.audios[: len(params)], params)

    def encoded(self, *params: Params[Any]) -> Batch:
        batch = self.new(*params)
        batch.run(Encode)
        return batch

    def prefilled(self, *params: Params[Any]) -> Batch:
        batch = self.encoded(*params)
        batch.run(Prefill)
        return batch


@pytest.fixture(scope="module")
def noises() -> list[WindowAudio]:
    random = np.random.default_rng(1)
    return [alone(random.normal(0, 0.1, n_s * SAMPLE_RATE).astype(np.float32)) for n_s in (3, 8, 5)]


@pytest.fixture(scope="module", params=[TorchRunner, GpuRunner])
def batches(request: pytest.FixtureRequest, noises: list[WindowAudio]) -> Batches:
    checkpoint = random_checkpoint(DIMS)
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    runner = request.param(checkpoint, tokenizer, replace(SETTINGS, slots=8))
    runner._lanes = None  # everything in this thread, where `OutOfMemory` sees it
    return Batches(EngineLoop(runner, runner.capacity, max_encode_batch=4), noises)


@pytest.mark.parametrize("is_thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_out_of_memory_while_decoding(batches: Batches, is_thorough: bool) -> None:
    """At another allocation in each step."""
    counter = OutOfMemory()
    batches.prefilled(BEAMS, SAMPLES, GREEDY).run(Decode, counter)
    numbers = fault_numbers(counter.n_operations, n_at_end=counter.n_operations if is_thorough else 16)
    for start in range(0, len(numbers), 150):  # a window has 448 tokens at most
        check_decode_with_faults(batches, numbers[start : start + 150])


def check_decode_with_faults(batches: Batches, numbers: Sequence[int]) -> None:
    params = [replace(BEAMS, max_tokens=len(numbers) + 1)]
    # On a GPU a failed attempt may have added a token already: they must not end before all faults have been.
    params += [replace(each, max_tokens=2 * len(numbers)) for each in (SAMPLES, GREEDY)]
    expected = batches.prefilled(*params).decode()
    assert [len(tokens) for tokens in expected] == [each.max_tokens for each in params]
    faults = map(OutOfMemory, numbers)
    assert batches.prefilled(*params).decode(faults) == expected
    assert next(faults, None) is None


def fault_numbers(n_operations: int, n_at_end: int) -> list[int]:
    """Some in the network, and all at the end, where a step applies its results; a step may have a few more."""
    return [*range(1, n_operations - n_at_end, 40), *range(n_operations - n_at_end + 1, n_operations + 6)]


@pytest.mark.parametrize("is_thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_out_of_memory_in_prefill(batches: Batches, is_thorough: bool) -> None:
    params = [replace(each, max_tokens=3) for each in (BEAMS, SAMPLES, GREEDY)]
    counter, batch = OutOfMemory(), batches.encoded(*params)
    batch.run(Prefill, counter)
    expected = batch.decode()
    for number in fault_numbers(counter.n_operations, n_at_end=counter.n_operations if is_thorough else 8):
        batch = batches.encoded(*params)
        batch.run(Prefill, OutOfMemory(number))
        assert batch.decode() == expected, f"allocation {number} of {counter.n_operations}"


def test_out_of_memory_while_encoding_and_aligning(batches: Batches) -> None:
    """These leave no state: the first, the last and one in between."""
    counters, batch = (OutOfMemory(), OutOfMemory()), batches.new(TEXT, TEXT)
    batches.loop.cache.clear()
    batch.run(Encode, counters[0])
    batch.run(Align, counters[1])
    expected = [result.token_probs for result in batch.results.values()]
    n_encode, n_align = (counter.n_operations for counter in counters)
    for encode, align in ((1, 1), (n_encode // 2, n_align // 2), (n_encode, n_align)):
        batches.loop.cache.clear()
        batch = batches.new(TEXT, TEXT)
        batch.run(Encode, OutOfMemory(encode))
        batch.run(Align, OutOfMemory(align))
        found = [result.token_probs for result in batch.results.values()]
        assert np.allclose(found, expected, rtol=1e-3)


class FailingModel:
    """A CTranslate2 model that fails once, at the nth call of a kind."""

    def __init__(self, model: Any, call: str, nth: int) -> None:
        self._model, self._call, self._n_left = model, call, nth

    def __getattr__(self, name: str) -> Any:
        self._n_left -= name == self._call
        if name == self._call and self._n_left == 0:
            raise RuntimeError("CUDA failed with error out of memory (simulated)")
        return getattr(self._model, name)


def test_out_of_memory_in_ctranslate2(
    tiny_checkpoint: Checkpoint, tokenizer: Tokenizer, noises: list[WindowAudio], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every call: one to encode, one to decode each group of windows to their end, one to align each text."""
    runner = Ct2Runner(tiny_checkpoint, tokenizer, replace(SETTINGS, threads=1))
    batches = Batches(EngineLoop(runner, runner.capacity, max_encode_batch=4), noises)
    model, found = runner._model, []
    calls = (("", 0), ("generate", 1), ("generate", 2), ("align", 1), ("align", 2), ("encode", 1))
    for call, nth in calls:
        if call == "encode":
            batches.loop.cache.clear()
        monkeypatch.setattr(runner, "_model", failing := FailingModel(model, call, nth))
        batch = batches.prefilled(*(replace(each, max_tokens=3) for each in (BEAMS, GREEDY)))
        texts = batches.encoded(TEXT, TEXT)
        texts.run(Align)
        found.append((batch.decode(), [list(result.token_probs) for result in texts.results.values()]))
        assert failing._n_left <= 0
    assert all(each == found[0] for each in found)
