"""Speech that a window's text misses: real weights and real speech; the fault, text that is lost, is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choral
from choral.engine.any_engine import AnyEngine
from choral.engine.window import Caller, Decoded, DecodeParams, Window
from choral.longform.cuts import Clip
from choral.longform.missed_speech import find_missed, overlap
from choral.remote.speech_samples import SpeechSample

RATE = 16_000
TokenRuns = list[tuple[int, ...]]  # of a window: its segments, each from its first timestamp to its last


class SkippingEngine:
    """Loses text of the first window, as the model sometimes does."""

    def __init__(self, engine: AnyEngine, timestamp_begin: int, skip: Callable[[TokenRuns], TokenRuns]) -> None:
        self._engine, self._timestamp_begin, self._skip = engine, timestamp_begin, skip
        self.has_skipped = False

    def submit(self, window: Window[Any], caller: Caller | None = None) -> Future[Any]:
        future: Future[Any] = self._engine.submit(window, caller)
        if self.has_skipped or not isinstance(window.params, DecodeParams):
            return future
        self.has_skipped = True
        skipped: Future[Any] = Future()
        future.add_done_callback(lambda done: skipped.set_result(self._without(done.result())))
        return skipped

    def _without(self, decoded: Decoded) -> Decoded:
        runs: TokenRuns = [()]
        for token in decoded.tokens:
            if len(runs[-1]) > 1 and min(token, runs[-1][-1]) >= self._timestamp_begin:
                runs.append(())
            runs[-1] += (token,)
        return replace(decoded, tokens=tuple(token for run in self._skip(runs) for token in run))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def longest_inner(runs: TokenRuns) -> int:
    return max(range(1, len(runs) - 1), key=lambda i: len(runs[i]))


def skip_segment(runs: TokenRuns) -> TokenRuns:
    lost = longest_inner(runs)
    return [*runs[:lost], *runs[lost + 1 :]]


def skip_text(runs: TokenRuns) -> TokenRuns:
    """The segment before it ends where it did."""
    lost = longest_inner(runs)
    return [*runs[: lost - 1], (*runs[lost - 1][:-1], runs[lost][-1]), *runs[lost + 1 :]]


SKIPS = {"between segments": skip_segment, "inside a segment": skip_text, "at the end": lambda runs: runs[:2]}


@pytest.fixture(scope="module")
def model(tiny_en_ct2: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_ct2, engine="ctranslate2", compute_type="int8") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def talk(librivox: tuple[SpeechSample, ...]) -> np.ndarray:
    """Four sentences, which fit a window."""
    pause = np.zeros(RATE, np.float32)
    return np.concatenate([part for sample in librivox[:4] for part in (samples_of(sample.path), pause)])


def samples_of(path: Path) -> np.ndarray:
    with choral.Recording.open(path) as recording:
        return recording.samples(0, recording.n_samples)


def words_of(text: str) -> Counter[str]:
    return Counter("".join(letter for letter in text.lower() if letter.isalpha() or letter == " ").split())


@pytest.fixture(scope="module")
def whole(model: choral.Model, talk: np.ndarray) -> Counter[str]:
    return words_of(model.transcribe(talk, mode="batched", temperature=0.0).text)


@pytest.fixture
def skipping(model: choral.Model, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the model lose text of the next window."""
    engine, begin = model.transcriber.engine, model.transcriber.tokenizer.timestamp_begin
    return lambda skip: monkeypatch.setattr(model.transcriber, "engine", SkippingEngine(engine, begin, SKIPS[skip]))


@pytest.mark.speech
@pytest.mark.parametrize("skip", SKIPS)
def test_missed_speech_gets_its_text(
    model: choral.Model, talk: np.ndarray, whole: Counter[str], skipping: Callable[[str], None], skip: str
) -> None:
    skipping(skip)
    transcript = model.transcribe(talk, mode="batched", temperature=0.0, word_timestamps=True)
    words = words_of(transcript.text)
    assert whole.total() > 45
    assert (whole - words).total() <= 4  # a word may be spelled otherwise
    assert (words - whole).total() <= 4
    times = [time for word in transcript.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert words_of("".join(word.text for word in transcript.words)) == words


@pytest.mark.speech
def test_retries_can_be_disabled(
    model: choral.Model, talk: np.ndarray, whole: Counter[str], skipping: Callable[[str], None]
) -> None:
    skipping("between segments")
    words = words_of(model.transcribe(talk, mode="batched", temperature=0.0, retry_missed_speech=False).text)
    assert (whole - words).total() >= 8


@pytest.mark.speech
def test_sequential_mode_retries_if_asked(
    model: choral.Model, talk: np.ndarray, skipping: Callable[[str], None]
) -> None:
    texts = []
    for retries in (None, True):
        skipping("between segments")
        texts.append(words_of(model.transcribe(talk, temperature=0.0, retry_missed_speech=retries).text))
    assert (texts[1] - texts[0]).total() >= 8
    assert (texts[0] - texts[1]).total() <= 1


@pytest.mark.speech
def test_a_repeated_sentence_is_written_as_often_as_it_is_said(
    model: choral.Model, librivox: tuple[SpeechSample, ...]
) -> None:
    """Such text is as repetitive as a loop, for which a higher temperature is no help."""
    audio = np.tile(samples_of(librivox[0].path), 4)
    transcript = model.transcribe(audio, mode="batched")
    assert words_of(transcript.text)["leisure"] == 4
    assert {segment.temperature for segment in transcript.segments} == {0.0}


def test_stretches_without_text() -> None:
    speech = [Clip(0, 500), Clip(600, 700), Clip(1000, 1060)]
    assert find_missed(speech, [Clip(0, 500), Clip(590, 710)]) == []  # 0.6 s are left: too little
    assert find_missed(speech, [Clip(200, 300), Clip(0, 150), Clip(280, 450)]) == [Clip(450, 1060)]
    assert find_missed(speech, []) == [Clip(0, 1060)]
    assert find_missed([], [Clip(0, 100)]) == []


def test_words_that_both_sides_of_a_seam_say() -> None:
    assert overlap(["to", "do", "so"], ["do", "so", "he"]) == 2
    assert overlap(["to", "do"], ["he", "to"]) == 0
    sentence = ["had", "he", "married", "a", "more", "amiable", "woman"]
    assert overlap(sentence, sentence) == 0  # said twice
