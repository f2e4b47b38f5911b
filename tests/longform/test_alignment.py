"""Alignment of a known text with speech, where the text has more and less than is spoken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import CancelledError
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

import choral
from choral import formats
from choral.errors import UsageError
from choral.longform.alignment import in_order, start_alignment
from choral.longform.known_text import TextWord
from choral.longform.realign import is_spoken
from choral.options import TranscribeOptions
from choral.remote.speech_samples import SpeechSample
from choral.serving.request_events import RequestFailed, RequestFinished, TranscribeRequest
from media_files import RATE, read_clip

JFK = "And so, my fellow Americans: ask not what your country can do for you. Ask what you can do for your country."
UNSPOKEN = "It was a bright cold day in April, and the clocks were striking thirteen."


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_pt, device="cpu", compute_type="float32") as loaded:
        yield loaded


def test_words_have_the_times_of_a_transcript(model: choral.Model, jfk: Path) -> None:
    progress: list[tuple[float, float]] = []
    aligned = model.align(jfk, JFK, on_progress=lambda *at: progress.append(at))
    words = aligned.words
    assert [word.text for word in words][:5] == [" And", " so,", " my", " fellow", " Americans:"]
    assert aligned.text.strip() == JFK
    assert [segment.text.strip() for segment in aligned.segments] == JFK.replace(". ", ".\n").splitlines()
    assert all(word.is_timed for word in words)
    assert [word.start for word in words] == sorted(word.start for word in words)
    assert all(word.end <= following.start for word, following in pairwise(words))
    assert words[4].start < 1.8 < words[4].end, "Americans"
    assert progress == sorted(progress)
    assert progress[-1] == (11.0, 11.0)
    assert aligned.warnings == ()


@pytest.mark.parametrize("processes", [0, 1])
def test_missing_and_additional_text(
    model: choral.Model, jfk: Path, librivox: tuple[SpeechSample, ...], processes: int
) -> None:
    """Three sentences are spoken. The text lacks one of them, and has one that is not spoken."""
    clips = [read_clip(librivox[0].path), read_clip(jfk), read_clip(librivox[1].path)]
    pause = np.zeros(RATE, np.int16)
    audio = np.concatenate([clips[0], pause, clips[1], pause, clips[2]])
    starts_s = [0.0, (clips[0].size + RATE) / RATE, (clips[0].size + clips[1].size + 2 * RATE) / RATE]
    text = f"{librivox[0].text}\n{UNSPOKEN}\n{librivox[1].text}"
    runtime = model.runtime(processes=processes)

    ended: SimpleQueue[object] = SimpleQueue()
    runtime.start(
        TranscribeRequest(audio=audio, options=TranscribeOptions(), text=text),
        lambda event: ended.put(event) if isinstance(event, RequestFinished | RequestFailed) else None,
    )
    end = ended.get(timeout=120)
    assert isinstance(end, RequestFinished), end
    aligned = end.transcript
    unspoken = [
        word for segment in aligned.segments if segment.text.strip() == UNSPOKEN for word in segment.words or ()
    ]
    assert len(unspoken) == len(UNSPOKEN.split())
    assert not any(word.is_timed for word in unspoken)
    n_first = len(librivox[0].text.split())
    first, last = aligned.words[:n_first], aligned.words[n_first + len(unspoken) :]
    for words, start_s, clip in ((first, starts_s[0], clips[0]), (last, starts_s[2], clips[2])):
        timed = [word for word in words if word.is_timed]
        assert len(timed) >= 0.9 * len(words)
        assert all(start_s <= word.start <= word.end <= start_s + clip.size / RATE + 0.1 for word in timed)
    assert "words of the text were not found in the audio" in aligned.warnings[-1]
    assert "bright cold day" not in formats.srt(aligned)
    assert formats.srt(aligned).count("-->") == formats.tsv(aligned).count("\n") - 1 < len(aligned.segments)
    fields = json.loads(formats.verbose_json(aligned))["words"][n_first]
    assert (fields["start"], fields["end"], fields["probability"]) == (None, None, None)


def test_a_passage_that_is_squeezed_into_a_pause_is_not_spoken() -> None:
    """Its first word makes the others probable, but nobody can say them in that time. Few words may be short."""
    texts = ["you", "can", "apply", "it", "to", "your", "programs", "too"]

    def passage(probabilities: list[float], duration_s: float) -> list[choral.Word]:
        n = len(probabilities)
        return [
            choral.Word(f" {text}", i * duration_s / n, (i + 1) * duration_s / n, probability)
            for i, (text, probability) in enumerate(zip(texts, probabilities, strict=False))
        ]

    assert is_spoken(passage([0.2] * 8, 2.0))
    assert not is_spoken(passage([0.2] * 8, 0.2))
    assert not is_spoken(passage([1e-4] * 4 + [0.1] * 4, 2.0))
    assert is_spoken(passage([0.2], 0.02))
    assert not is_spoken(passage([1e-4, 0.1], 0.5))


def test_a_time_that_is_far_off_moves_no_other_word() -> None:
    words = [TextWord(f" {i}", (), str(i)) for i in range(6)]
    times = {i: choral.Word(f" {i}", i, i + 1, 1.0) for i in range(6)}
    late, early = {**times, 2: choral.Word(" 2", 50, 51, 1.0)}, {**times, 3: choral.Word(" 3", 0, 1, 1.0)}
    assert [word.start for word in in_order(words, late)] == [0, 1, 3, 3, 4, 5]
    assert [word.start for word in in_order(words, early)] == [0, 1, 2, 2, 4, 5]
    del times[4]
    assert [word.is_timed for word in in_order(words, times)] == [True] * 4 + [False, True]


def test_errors(model: choral.Model, jfk: Path) -> None:
    for text in ("", " \n", "…—!"):
        with pytest.raises(UsageError, match="the text to align is empty"):
            model.align(jfk, text)
    with pytest.raises(UsageError, match="characters, and at most"):
        model.align(jfk, "word " * 2_000_000)
    with pytest.raises(UsageError, match="must be a string"):
        model.align(jfk, b"text")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"does not match the audio: 0 of its 9 words .* in the language"):
        model.align(jfk, "Heute scheint die Sonne, und morgen wird es regnen.")
    with pytest.raises(UsageError, match="translation"):
        model.align(jfk, JFK, task="translate")
    silent = model.align(np.zeros(RATE, np.float32), "hello world")
    assert not any(word.is_timed for word in silent.words)
    assert "silent" in silent.warnings[0]
    assert formats.srt(silent) == ""


def test_cancel(model: choral.Model, jfk: Path) -> None:
    with choral.Recording.open(jfk) as recording:
        alignment = start_alignment(model.transcriber, recording, JFK, TranscribeOptions())
        alignment.cancel()
        with pytest.raises(CancelledError):
            list(alignment)
