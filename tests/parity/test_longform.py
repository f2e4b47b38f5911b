"""Long recordings with pauses, noise and silence: the same segments, words and text as openai-whisper."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from choral.audio.recording import Recording
from choral.transcript import Segment
from oracle import Pair

RATE = 16_000


def music(seconds: float, rng: np.random.Generator) -> np.ndarray:
    """Chords that change twice a second, with some hiss: nothing to transcribe, much to hallucinate."""
    t = np.arange(round(seconds * RATE)) / RATE
    roots = 220 * 2 ** (rng.integers(0, 12, size=int(seconds * 2) + 1) / 12)
    root = roots[(t * 2).astype(int)]
    tones = sum(np.sin(2 * np.pi * root * ratio * t) for ratio in (1.0, 1.25, 1.5, 2.0))
    return (0.05 * tones + rng.normal(0, 0.003, t.size)).astype(np.float32)


def joined(paths: list[Path], minutes: float, seed: int) -> np.ndarray:
    """Real speech in random order with pauses of up to four seconds, and now and then noise, music or silence."""
    rng = np.random.default_rng(seed)
    clips = []
    for path in paths:
        with Recording.open(path) as recording:
            clips.append(recording.samples(0, recording.n_samples))
    pieces: list[np.ndarray] = []
    while sum(piece.size for piece in pieces) < minutes * 60 * RATE:
        pieces.append(clips[rng.integers(len(clips))])
        pieces.append(np.zeros(round(rng.uniform(0.1, 4.0) * RATE), dtype=np.float32))
        match rng.integers(12):
            case 0:
                pieces.append(music(rng.uniform(3, 12), rng))
            case 1:
                pieces.append(rng.normal(0, 0.02, round(rng.uniform(2, 8) * RATE)).astype(np.float32))
            case 2:
                pieces.append(np.zeros(round(rng.uniform(20, 45) * RATE), dtype=np.float32))
    return np.concatenate(pieces)


def compare(segments: tuple[Segment, ...], expected: list[dict[str, Any]]) -> None:
    """openai-whisper keeps emptied segments in its list; Choral drops them."""
    expected = [segment for segment in expected if segment["text"]]
    assert [segment.text for segment in segments] == [segment["text"] for segment in expected]
    for found, theirs in zip(segments, expected, strict=True):
        assert list(found.tokens) == theirs["tokens"]
        assert found.seek == theirs["seek"]
        assert (found.start, found.end) == pytest.approx((theirs["start"], theirs["end"]), abs=1e-6)
        assert found.avg_logprob == pytest.approx(theirs["avg_logprob"], abs=1e-3)
        assert found.no_speech_prob == pytest.approx(theirs["no_speech_prob"], abs=1e-3)
        if found.words is not None:
            compare_words(found, theirs["words"])


def compare_words(segment: Segment, expected: list[dict[str, Any]]) -> None:
    assert segment.words is not None
    assert [word.text for word in segment.words] == [word["word"] for word in expected]
    for word, theirs in zip(segment.words, expected, strict=True):
        assert (word.start, word.end) == pytest.approx((theirs["start"], theirs["end"]), abs=0.0201)
        assert word.probability == pytest.approx(theirs["probability"], abs=1e-3)


@pytest.fixture(scope="module")
def english(speech_clips: list[Path], prompts: Callable[[str, int], tuple[Path, ...]]) -> list[Path]:
    return [*speech_clips, *prompts("en", 40)]


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("minutes", [2.5, slow(20.5)])
def test_long_recording(minutes: float, tiny_en: Pair, english: list[Path]) -> None:
    audio = joined(english, minutes=minutes, seed=1)
    expected = tiny_en.oracle.transcribe(audio, temperature=0.0, fp16=False)
    found = tiny_en.choral.transcribe(audio, mode="sequential", temperature=0.0)
    assert found.duration > (minutes - 0.5) * 60
    compare(found.segments, expected["segments"])
    assert found.text == expected["text"]


@pytest.mark.parametrize(
    ("options", "minutes"),
    [
        ({"word_timestamps": True, "hallucination_silence_threshold": 1.0}, 1.5),
        slow({"word_timestamps": True}, 2.5),
        slow({"beam_size": 5, "condition_on_previous_text": False}, 1.2),
        slow({"initial_prompt": "Voicemail, extension.", "carry_initial_prompt": True}, 1.5),
        slow({"without_timestamps": True}, 1.5),
        slow({"no_speech_threshold": 0.3, "logprob_threshold": -0.5}, 1.5),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_options(options: dict[str, Any], minutes: float, tiny_en: Pair, english: list[Path]) -> None:
    audio = joined(english, minutes=minutes, seed=len(options))
    expected = tiny_en.oracle.transcribe(audio, temperature=0.0, fp16=False, **options)
    choral_options = dict(options)
    if choral_options.pop("without_timestamps", False):
        choral_options["timestamps"] = False
    found = tiny_en.choral.transcribe(audio, mode="sequential", temperature=0.0, **choral_options)
    compare(found.segments, expected["segments"])
    assert found.text == expected["text"]


def test_clip_timestamps(tiny_en: Pair, english: list[Path]) -> None:
    audio = joined(english, minutes=2, seed=9)
    clips = [5.0, 31.5, 40.0, 95.0]
    expected = tiny_en.oracle.transcribe(audio, temperature=0.0, fp16=False, clip_timestamps=clips)
    found = tiny_en.choral.transcribe(audio, mode="sequential", temperature=0.0, clip_timestamps=tuple(clips))
    compare(found.segments, expected["segments"])


@pytest.mark.parametrize(
    "language", [pytest.param(language, marks=pytest.mark.slow) for language in ("ru", "fr", "es", "it")]
)
def test_other_languages(language: str, tiny: Pair, prompts: Callable[[str, int], tuple[Path, ...]]) -> None:
    """With language detection and word timestamps: other alphabets and other punctuation."""
    audio = joined(list(prompts(language, 9)), minutes=1, seed=3)
    expected = tiny.oracle.transcribe(audio, temperature=0.0, fp16=False, word_timestamps=True)
    found = tiny.choral.transcribe(audio, mode="sequential", temperature=0.0, word_timestamps=True)
    assert found.language == expected["language"]
    compare(found.segments, expected["segments"])


def test_translation(tiny: Pair, prompts: Callable[[str, int], tuple[Path, ...]]) -> None:
    audio = joined(list(prompts("es", 9)), minutes=1, seed=4)
    expected = tiny.oracle.transcribe(audio, temperature=0.0, fp16=False, task="translate", language="es")
    found = tiny.choral.transcribe(audio, mode="sequential", temperature=0.0, task="translate", language="es")
    compare(found.segments, expected["segments"])
