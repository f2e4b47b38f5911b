"""Recordings that change language: each turn in its own, whatever the mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.formats import verbose_json
from choral.longform.chain_types import WindowRange
from choral.longform.language_runs import most_probable, turns_in

RATE = 16_000


@pytest.fixture(scope="module")
def model(tiny_ggml: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_ggml, device="cpu", engine="ctranslate2") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def talk(speech_clips: list[Path], prompts: Callable[[str, int], tuple[Path, ...]]) -> np.ndarray:
    """Two speakers take turns in English and Russian, with pauses of 0.6 s."""
    turns = [speech_clips[0], prompts("ru", 2)[0], speech_clips[1], prompts("ru", 2)[1]]
    pieces = []
    for path in turns:
        with choral.Recording.open(path) as recording:
            pieces += [recording.samples(0, recording.n_samples).copy(), np.zeros(round(0.6 * RATE), np.float32)]
    return np.concatenate(pieces)


def languages_of(transcript: choral.Transcript) -> list[str | None]:
    return [language for language, _ in groupby(segment.language for segment in transcript.segments)]


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_each_turn_is_in_its_language(model: choral.Model, talk: np.ndarray, mode: str) -> None:
    transcript = model.transcribe(talk, mode=mode, multilingual=True, languages=("english", "ru"))
    assert languages_of(transcript) == ["en", "ru", "en", "ru"]
    for segment in transcript.segments:
        is_cyrillic = any("а" <= letter <= "я" for letter in segment.text.lower())
        assert is_cyrillic == (segment.language == "ru"), segment
    fields = json.loads(verbose_json(transcript))
    assert [segment["language"] for segment in fields["segments"]] == [s.language for s in transcript.segments]
    assert transcript.language in ("en", "ru")
    assert transcript.language_probability is None


def test_detection_is_limited_to_the_languages(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk[: 5 * RATE], mode="batched", languages=["de", "fr"], temperature=0.0)
    assert transcript.language in ("de", "fr")
    assert {segment.language for segment in transcript.segments} == {None}


def test_a_doubtful_turn_follows_its_neighbours() -> None:
    sure, unsure = {"en": 0.98, "ru": 0.02}, {"en": 0.3, "ru": 0.7}
    assert most_probable([sure, unsure, sure]) == ["en", "en", "en"]
    assert most_probable([sure, {"en": 0.0, "ru": 1.0}, sure]) == ["en", "ru", "en"]
    assert most_probable([unsure]) == ["ru"]


def test_turns_are_cut_in_pauses(talk: np.ndarray) -> None:
    with choral.Recording.open(talk) as recording:
        n_frames = talk.size // 160
        turns = turns_in(recording, WindowRange(0, n_frames), 0.5)
        assert (turns[0].start, turns[-1].stop) == (0, n_frames)
        assert len(turns) >= 4
        quiet = [np.abs(talk[turn.stop * 160 - 800 : turn.stop * 160 + 800]).max() for turn in turns[:-1]]
        assert max(quiet) < 0.1 * np.abs(talk).max()


def test_wrong_languages(model: choral.Model, talk: np.ndarray) -> None:
    with pytest.raises(choral.errors.UsageError, match="unknown language 'klingon'"):
        model.transcribe(talk, languages=("klingon",))
    for given in ({"multilingual": True}, {"languages": ("de",)}):
        with pytest.raises(choral.errors.UsageError, match=f"^{next(iter(given))} has no effect where the language"):
            choral.TranscribeOptions(language="en", **given)
