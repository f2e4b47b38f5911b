"""Windows decoded together give what each gives alone, whatever else is in the batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from choral.audio.recording import Recording
from choral.engine.window import Decode, Decoded, Window, WindowAudio
from choral.errors import UsageError
from choral.longform.cuts import cut_alone, n_mel_frames
from oracle import Pair, pair_from

N_WINDOWS = 50


@pytest.fixture(scope="module")
def pair(tiny_ggml: Path) -> Iterator[Pair]:
    yield from pair_from(tiny_ggml)


@pytest.fixture(scope="module")
def audios(jfk: Path, speech_clips: list[Path]) -> list[WindowAudio]:
    cut = []
    for path in [jfk, *speech_clips]:
        with Recording.open(path) as recording:
            cut.append(cut_alone(recording, 0, n_mel_frames(recording)))
    return cut


def random_work(rng: random.Random, pair: Pair) -> Decode:
    prompt = tuple(pair.tokenizer.encode(" " + "He was a young man. " * rng.randrange(8)))
    return Decode(
        prompt=prompt if rng.random() < 0.4 else (),
        prefix=tuple(pair.tokenizer.encode(" Well")) if rng.random() < 0.1 else (),
        language=rng.choice(["en", "en", "de", "ru"]),
        task=rng.choice(["transcribe", "transcribe", "translate"]),
        timestamps=rng.random() < 0.7,
        temperature=rng.choice([0.0, 0.0, 0.4, 1.0]),
        n_candidates=rng.choice([1, 1, 2, 5]),
        patience=rng.choice([1.0, 2.0]),
        length_penalty=rng.choice([None, 0.6]),
        max_tokens=rng.choice([None, None, 3, 20]),
        suppress_tokens=pair.tokenizer.suppressed((-1,) if rng.random() < 0.8 else ()),
        suppress_blank=rng.random() < 0.8,
        max_initial_timestamp=rng.choice([None, 0.5, 1.0]),
        seed=rng.randrange(5),
    )


def same(found: Decoded, expected: Decoded) -> bool:
    return (
        found.tokens == expected.tokens
        and found.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-4)
        and found.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-4)
    )


def test_together_as_alone(pair: Pair, audios: list[WindowAudio]) -> None:
    """Random options side by side, with windows that fail and windows that are given up in between."""
    rng = random.Random(0)
    windows: list[Window[Any]] = [Window(rng.choice(audios), random_work(rng, pair)) for _ in range(N_WINDOWS)]
    alone = [pair.engine.submit(window).result() for window in windows]
    before = pair.engine.stats

    futures, bad, given_up = [], [], []
    for i, window in enumerate(windows):
        futures.append(pair.engine.submit(window, request=i % 7))
        if i % 9 == 0:
            bad.append(pair.engine.submit(Window(audios[0], Decode(language="xx"))))
        if i % 8 == 0:
            given_up.append(pair.engine.submit(window, request=i % 7))
            pair.engine.cancel(given_up[-1])
    together = [future.result() for future in futures]

    assert [same(*both) for both in zip(together, alone, strict=True)] == [True] * N_WINDOWS
    for future in bad:
        with pytest.raises(UsageError):
            future.result()
    for future in given_up:
        with pytest.raises(CancelledError):
            future.result()
    after = pair.engine.stats
    n_tokens = sum(len(decoded.tokens) + 1 for decoded in alone)
    assert after.encoded == before.encoded  # all audio was in the cache
    assert after.steps - before.steps < n_tokens / 3  # and a step served several windows


def test_a_batched_file_fills_the_batch_by_itself(pair: Pair, audios: list[WindowAudio]) -> None:
    import numpy as np

    talk = np.concatenate([np.pad(audio.samples, (0, 40_000)) for audio in audios * 3])
    before = pair.engine.stats
    transcript = pair.choral.transcribe(talk, mode="batched", language="en", temperature=0.0)
    after = pair.engine.stats
    n_tokens = sum(len(segment.tokens) for segment in transcript.segments)
    assert after.windows - before.windows >= 4
    assert after.steps - before.steps < n_tokens * 0.6
