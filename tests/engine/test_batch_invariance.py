"""Batch invariance: a window's result does not depend on what else is in the batch, or when it arrives.

Real clips, noise and silence; random options and params; several threads that submit at random moments; windows that
fail and windows that are cancelled in between. For torch, in int8 too, tokens are equal, and scores to the rounding of
float32; with CTranslate2, texts are equal.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from choral.audio.constants import HOP_LENGTH
from choral.engine.engine import Engine
from choral.engine.factory import ctranslate2_engine
from choral.engine.gpu_runner import GpuRunner
from choral.engine.steps import Pending
from choral.engine.torch_runner import TorchRunner
from choral.engine.window import (
    Aligned,
    AlignParams,
    Caller,
    Decoded,
    DecodeParams,
    DetectLanguageParams,
    Languages,
    TokenTimes,
    Window,
    WindowAudio,
)
from choral.errors import UsageError, WindowFailed
from choral.model import int8
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer
from real_model import SETTINGS, Loaded, alone

SOON_S = 300
N_THREADS = 4
SENTENCE = " He was a young man, and went on to say so."


@dataclass(frozen=True)
class Runner:
    engine: Engine
    is_same: Callable[[Any, Any, Tokenizer], bool]


@pytest.fixture(scope="module", params=["torch", "int8", "gpu", pytest.param("ctranslate2", marks=pytest.mark.slow)])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    loaded: Loaded = request.getfixturevalue("tiny")
    checkpoint: Checkpoint = request.getfixturevalue("tiny_checkpoint")
    if request.param == "torch":
        yield Runner(loaded.engine, equal_to_rounding)
        return
    if request.param == "int8":
        if not (int8.has_vnni() and int8.has_native_bf16()):
            pytest.skip("this CPU has no instructions for bytes and bfloat16")
        settings = replace(SETTINGS, compute_type="int8")
        engine = Engine(TorchRunner(checkpoint, loaded.tokenizer, settings), settings)
        yield Runner(engine, equal_to_rounding)
        engine.close()
        return
    if request.param == "gpu":  # with the torch references instead of its kernels
        settings = replace(SETTINGS, slots=16)
        engine = Engine(GpuRunner(checkpoint, loaded.tokenizer, settings), settings)
        yield Runner(engine, equal_to_rounding)
        engine.close()
        return
    settings = replace(SETTINGS, threads=1)  # two would wait for each other beside other tests
    engine = ctranslate2_engine(checkpoint, request.getfixturevalue("tokenizer"), settings)
    yield Runner(engine, equal_text)
    engine.close()


def equal_to_rounding(found: Any, expected: Any, tokenizer: Tokenizer) -> bool:
    match found, expected:
        case Decoded(), Decoded():
            scores = [found.avg_logprob, found.no_speech_prob, *(found.token_logprobs or ())]
            expected_scores = [expected.avg_logprob, expected.no_speech_prob, *(expected.token_logprobs or ())]
            return found.tokens == expected.tokens and np.allclose(scores, expected_scores, rtol=0, atol=1e-4)
        case Languages(), Languages():
            return found.probabilities == pytest.approx(expected.probabilities, abs=1e-4)
        case Aligned(), Aligned():
            return (
                found.n_start_tokens == expected.n_start_tokens
                and np.allclose(found.token_probs, expected.token_probs, rtol=0, atol=1e-4)
                and np.allclose(found.scores, expected.scores, rtol=0, atol=1e-3)
            )
    return False


def equal_text(found: Any, expected: Any, tokenizer: Tokenizer) -> bool:
    match found, expected:
        case Decoded(), Decoded():
            return tokenizer.decode(found.tokens) == tokenizer.decode(expected.tokens)
        case Languages(), Languages():
            return found.best == expected.best
        case TokenTimes(), TokenTimes():
            return bool(np.array_equal(found.token_frames, expected.token_frames))
    return False


def random_decode(rng: random.Random, tokenizer: Tokenizer, longest: int) -> DecodeParams:
    temperature = rng.choice([0.0, 0.0, 0.0, 0.4, 1.0])
    n_candidates = rng.choice([1, 1, 1, 2, 5])
    return DecodeParams(
        prompt=tuple(tokenizer.encode(SENTENCE * rng.randrange(1, 8))) if rng.random() < 0.3 else (),
        prefix=tuple(tokenizer.encode(" Well")) if rng.random() < 0.1 else (),
        language=rng.choice(["en", "en", "de", "ru"]),
        task=rng.choice(["transcribe", "transcribe", "translate"]),
        timestamps=rng.random() < 0.7,
        temperature=temperature,
        n_candidates=n_candidates,
        patience=rng.choice([1.0, 2.0]),
        length_penalty=rng.choice([None, 0.6]),
        max_tokens=rng.choice([1, 3, longest, longest]),
        suppress_tokens=tokenizer.suppressed((-1,) if rng.random() < 0.8 else ()),
        suppress_blank=rng.random() < 0.8,
        max_initial_timestamp=rng.choice([None, 0.5, 1.0]),
        token_logprobs=n_candidates == 1,
        seed=rng.randrange(5),
    )


def random_window(rng: random.Random, audios: Sequence[WindowAudio], tokenizer: Tokenizer, longest: int) -> Window[Any]:
    audio = rng.choice(audios)
    kind = rng.random()
    if kind < 0.1:
        return Window(audio, DetectLanguageParams())
    if kind < 0.2:
        tokens = tuple(tokenizer.encode(SENTENCE * rng.randrange(1, 4)))[: rng.randrange(1, 40)]
        n_frames = min(1500, len(audio.samples) // HOP_LENGTH // 2)
        return Window(audio, AlignParams(text_tokens=tokens, n_frames=n_frames, language="en", task="transcribe"))
    return Window(audio, random_decode(rng, tokenizer, longest))


def bad_window(rng: random.Random, audios: Sequence[WindowAudio]) -> Window[Any]:
    samples = audios[0].samples.copy()
    samples[rng.randrange(10_000)] = np.nan
    return rng.choice(
        [Window(alone(samples), DecodeParams(language="en")), Window(audios[1], DecodeParams(language="xx"))]
    )


class Submitting:
    """Windows from several threads, as several callers, at random moments; bad and cancelled ones in between."""

    def __init__(self, engine: Engine, windows: Sequence[Window[Any]], audios: Sequence[WindowAudio], seed: int):
        self.engine, self.windows, self.audios = engine, windows, audios
        self.futures: dict[int, Pending[Any]] = {}
        self.bad: list[Pending[Any]] = []
        self.cancelled: list[Pending[Any]] = []
        callers = [Caller(priority) for priority in ("interactive", "interactive", "batch")]
        numbers = [range(first, len(windows), N_THREADS) for first in range(N_THREADS)]
        rngs = [random.Random(f"{seed} {first}") for first in range(N_THREADS)]
        parts = zip(numbers, rngs, strict=True)
        self.threads = [threading.Thread(target=self.submit, args=(*part, callers)) for part in parts]

    def submit(self, numbers: range, rng: random.Random, callers: Sequence[Caller]) -> None:
        for number in numbers:
            time.sleep(rng.choice([0, 0, 0.002, 0.05]))
            self.futures[number] = self.engine.submit(self.windows[number], rng.choice([*callers, None]))
            if rng.random() < 0.1:
                self.bad.append(self.engine.submit(bad_window(rng, self.audios), rng.choice(callers)))
            if rng.random() < 0.15:
                pending = self.engine.submit(rng.choice(self.windows), rng.choice(callers))
                time.sleep(rng.choice([0, 0.02, 0.1]))
                self.engine.cancel(pending)
                self.cancelled.append(pending)

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(SOON_S)
        assert sorted(self.futures) == list(range(len(self.windows)))


def check_together_as_alone(
    runner: Runner, tokenizer: Tokenizer, audios: Sequence[WindowAudio], n_windows: int, longest: int, seed: int
) -> None:
    engine = runner.engine
    rng = random.Random(seed)
    windows = [random_window(rng, audios, tokenizer, longest) for _ in range(n_windows)]
    expected = [engine.submit(window).result(SOON_S) for window in windows]
    before = engine.stats
    submitting = Submitting(engine, windows, audios, seed)
    submitting.run()

    for number, window in enumerate(windows):
        found = submitting.futures[number].result(SOON_S)
        assert runner.is_same(found, expected[number], tokenizer), (window.params, found, expected[number])
    for future in submitting.bad:
        assert isinstance(future.exception(SOON_S), UsageError | WindowFailed)
    for future in submitting.cancelled:
        try:
            future.result(SOON_S)  # it may have been done before
        except CancelledError:
            continue
    after = engine.stats
    assert after.encoded - before.encoded <= len(submitting.bad)  # all other audio was known
    assert after.waiting == 0


def test_results_do_not_depend_on_the_batch(runner: Runner, tokenizer: Tokenizer, audios: list[WindowAudio]) -> None:
    check_together_as_alone(runner, tokenizer, audios, n_windows=30, longest=20, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_random_batches_match_single_windows(
    runner: Runner, tokenizer: Tokenizer, audios: list[WindowAudio], seed: int
) -> None:
    check_together_as_alone(runner, tokenizer, audios, n_windows=100, longest=100, seed=seed)


def test_windows_share_decoder_steps(tiny: Loaded, speech: list[WindowAudio]) -> None:
    params = DecodeParams(language="en", suppress_tokens=tiny.tokenizer.suppressed((-1,)), max_tokens=20)
    before = tiny.engine.stats
    futures = [tiny.engine.submit(Window(speech[i % len(speech)], params)) for i in range(12)]
    n_tokens = sum(len(future.result(SOON_S).tokens) for future in futures)
    after = tiny.engine.stats
    assert after.steps - before.steps < n_tokens / 3
    assert (after.rows - before.rows) / (after.steps - before.steps) > 4
