"""The engine with the real tiny model: encoder cache, cancellation, isolation of bad windows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from choral.engine.steps import Decode
from choral.engine.window import (
    AlignParams,
    Caller,
    Decoded,
    DecodeParams,
    DetectLanguageParams,
    Params,
    Window,
    WindowAudio,
)
from choral.errors import UsageError, WindowFailed
from choral.model.kv_cache import KVCache
from real_model import Loaded, alone

SOON_S = 120
FELLOW_AMERICANS = " And so my fellow Americans ask not what your country can do for you"


@pytest.fixture
def english(tiny: Loaded) -> DecodeParams:
    return DecodeParams(language="en", suppress_tokens=tiny.tokenizer.suppressed((-1,)), max_tokens=30)


def fresh(audio: WindowAudio, number: int) -> WindowAudio:
    """Audio that sounds the same but has another cache key."""
    return alone(np.concatenate([audio.samples, np.full(number, 1e-9, np.float32)]))


def together(tiny: Loaded, windows: list[Window[Any]]) -> list[Any]:
    """Submit all windows at once, so that they share steps."""
    caller = Caller()
    return [tiny.engine.submit(window, caller) for window in windows]


# Encoder cache


def test_the_same_audio_is_encoded_once_for_all_params(tiny: Loaded, speech: list[WindowAudio], english: DecodeParams):
    audio = fresh(speech[0], 1)
    tokens = tuple(tiny.tokenizer.encode(FELLOW_AMERICANS))
    all_params: list[Params[Any]] = [
        DetectLanguageParams(),
        english,
        replace(english, temperature=0.4),  # a fallback
        replace(english, temperature=0.8, n_candidates=3),
        replace(english, n_candidates=5),
        AlignParams(text_tokens=tokens, n_frames=550, language="en", task="transcribe"),
    ]
    before = tiny.engine.stats
    for params in all_params:
        tiny.engine.submit(Window(audio, params)).result(SOON_S)
    for future in together(tiny, [Window(fresh(speech[0], 1), params) for params in all_params]):
        future.result(SOON_S)
    after = tiny.engine.stats
    assert after.encoded - before.encoded == 1
    assert after.encoder_steps - before.encoder_steps == 1
    assert after.cache_hits - before.cache_hits == 2 * len(all_params) - 1


# Cancelling


def test_a_window_cancelled_while_decoding_leaves_at_the_next_step(
    tiny: Loaded, speech: list[WindowAudio], english: DecodeParams
):
    n_slots = tiny.engine.capacity.n_slots
    is_decoding = threading.Event()
    tiny.engine.observe(lambda record: is_decoding.set() if isinstance(record.step, Decode) else None)
    begun = tiny.engine.submit(Window(speech[0], replace(english, n_candidates=n_slots)))
    assert is_decoding.wait(SOON_S)
    tiny.engine.observe(None)
    tiny.engine.cancel(begun)
    with pytest.raises(CancelledError):
        begun.result(SOON_S)
    all_slots = Window(speech[1], replace(english, n_candidates=n_slots, max_tokens=2))
    assert tiny.engine.submit(all_slots).result(SOON_S).tokens


# Isolation


def with_sample(audio: WindowAudio, value: float) -> WindowAudio:
    samples = audio.samples.copy()
    samples[1000] = value
    return alone(samples)


BAD: dict[str, tuple[Callable[[WindowAudio, DecodeParams], Window[Any]], type[Exception]]] = {
    "not a number": (lambda audio, params: Window(with_sample(audio, np.nan), params), WindowFailed),
    "infinite": (lambda audio, params: Window(with_sample(audio, np.inf), params), WindowFailed),
    "not a number, beams": (
        lambda audio, params: Window(with_sample(audio, np.nan), replace(params, n_candidates=3)),
        WindowFailed,
    ),
    "not a number, sampled": (
        lambda audio, params: Window(with_sample(audio, np.nan), replace(params, temperature=1.0, n_candidates=2)),
        WindowFailed,
    ),
    "not a number, which language": (
        lambda audio, _: Window(with_sample(audio, np.nan), DetectLanguageParams()),
        WindowFailed,
    ),
    "not a number, aligned": (
        lambda audio, _: Window(
            with_sample(audio, np.nan), AlignParams(text_tokens=(5, 6), n_frames=500, language="en", task="transcribe")
        ),
        WindowFailed,
    ),
    "unknown token in the prompt": (
        lambda audio, params: Window(audio, replace(params, prompt=(5, 999_999))),
        UsageError,
    ),
    "negative token in the prefix": (lambda audio, params: Window(audio, replace(params, prefix=(-3,))), UsageError),
    "unknown token suppressed": (
        lambda audio, params: Window(audio, replace(params, suppress_tokens=(60_000,))),
        UsageError,
    ),
    "unknown token aligned": (
        lambda audio, _: Window(
            audio, AlignParams(text_tokens=(999_999,), n_frames=500, language="en", task="transcribe")
        ),
        UsageError,
    ),
    "unknown language": (lambda audio, params: Window(audio, replace(params, language="xx")), UsageError),
}


@pytest.fixture(scope="module")
def good(tiny: Loaded, speech: list[WindowAudio]) -> list[tuple[Window[Decoded], Decoded]]:
    """Windows, and the result of each when it runs alone."""
    params = DecodeParams(language="en", suppress_tokens=tiny.tokenizer.suppressed((-1,)), max_tokens=12)
    all_params = [params, replace(params, n_candidates=3), replace(params, temperature=0.5, n_candidates=2)]
    windows = [Window(audio, params) for audio, params in zip(speech, all_params, strict=False)]
    return [(window, tiny.engine.submit(window).result(SOON_S)) for window in windows]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of infinite samples, in their mel features
@pytest.mark.parametrize("name", BAD)
def test_a_bad_window_fails_alone(
    tiny: Loaded, speech: list[WindowAudio], good: list[tuple[Window[Decoded], Decoded]], name: str
):
    make, error = BAD[name]
    before = tiny.engine.stats.failed
    bad = make(speech[3], good[0][0].params)  # type: ignore[arg-type]
    windows = [good[0][0], bad, good[1][0], good[2][0]]
    first, failed, *others = together(tiny, windows)
    assert type(failed.exception(SOON_S)) is error
    for future, (_, expected) in zip([first, *others], good, strict=True):
        found = future.result(SOON_S)
        assert found.tokens == expected.tokens
        assert found.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-4)
    assert tiny.engine.stats.failed == before + 1


def test_a_slot_that_had_nan_is_clean_for_the_next_window(
    tiny: Loaded, speech: list[WindowAudio], good: list[tuple[Window[Decoded], Decoded]]
):
    for _ in range(3):
        bad = Window(with_sample(speech[2], np.nan), replace(good[0][0].params, n_candidates=5))  # type: ignore[type-var]
        assert isinstance(tiny.engine.submit(bad).exception(SOON_S), WindowFailed)
        for window, expected in good:
            assert tiny.engine.submit(window).result(SOON_S).tokens == expected.tokens


def test_aligning_an_empty_text(tiny: Loaded, speech: list[WindowAudio]):
    nothing = AlignParams(text_tokens=(), n_frames=500, language="en", task="transcribe")
    assert tiny.engine.submit(Window(speech[0], nothing)).result(SOON_S).token_probs.tolist() == []


def test_many_threads_can_submit_at_once(tiny: Loaded, good: list[tuple[Window[Decoded], Decoded]]):
    found: dict[int, Decoded] = {}

    def ask(number: int) -> None:
        found[number] = tiny.engine.submit(good[number % len(good)][0]).result(SOON_S)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert {number: found[number].tokens for number in range(12)} == {
        number: good[number % len(good)][1].tokens for number in range(12)
    }


def test_failed_beam_copy_fails_the_window_without_skipping_a_token(
    tiny: Loaded, english: DecodeParams, speech: list[WindowAudio], monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(speech[0], replace(english, n_candidates=3))
    expected = tiny.engine.submit(window).result(SOON_S)
    calls: list[int] = []
    copy = KVCache.copy

    def full(self: KVCache, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("out of memory")
        copy(self, *arguments)

    monkeypatch.setattr(KVCache, "copy", full)
    with pytest.raises(WindowFailed, match="out of memory"):
        tiny.engine.submit(window).result(SOON_S)
    monkeypatch.undo()
    assert len(calls) == 4  # it was not retried
    assert tiny.engine.submit(window).result(SOON_S).tokens == expected.tokens
