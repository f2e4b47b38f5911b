"""The batched mode: nothing lost at cuts, every option honoured, no text out of silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.longform.cuts import Clip, clips_from, cut_to_windows
from choral.types import TranscribeOptions

RATE = 16_000


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_pt, device="cpu") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def talk(jfk: Path, speech_clips: list[Path]) -> np.ndarray:
    """Two minutes: sentences with pauses, and half a minute of silence in the middle."""
    clips = []
    for path in [jfk, *speech_clips]:
        with choral.Recording.open(path) as recording:
            clips.append(recording.samples(0, recording.n_samples))
    pause = np.zeros(RATE, dtype=np.float32)
    once = np.concatenate([part for clip in clips for part in (clip, pause)])
    return np.concatenate([once, np.zeros(30 * RATE, dtype=np.float32), once])


def words_of(text: str) -> list[str]:
    return "".join(letter for letter in text.lower() if letter.isalpha() or letter == " ").split()


def test_nothing_is_lost_and_times_do_not_drift(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk, mode="batched", word_timestamps=True)
    words = words_of(transcript.text)
    for phrase in ("what you can do for your country", "leisure to consider", "rather selfish", "amiable himself"):
        assert " ".join(words).count(phrase) == 2
    times = [time for word in transcript.words for time in (word.start, word.end)]
    assert times == sorted(times)
    first, second = (word.start for word in transcript.words if word.text.strip(" ,") == "Americans")
    gap_s = (talk.size / RATE - 30) / 2 + 30
    assert second - first == pytest.approx(gap_s, abs=0.2)


def test_silence_gives_no_text(model: choral.Model) -> None:
    rng = np.random.default_rng(0)
    for audio in (np.zeros(40 * RATE, dtype=np.float32), rng.normal(0, 3e-4, 40 * RATE).astype(np.float32)):
        transcript = model.transcribe(audio, mode="batched")
        assert (transcript.text, transcript.segments) == ("", ())
        assert len(transcript.warnings) == 1


@pytest.mark.parametrize("mode", ["sequential", "batched"])
def test_digital_silence_and_ten_milliseconds(mode: str, model: choral.Model) -> None:
    for n_samples in (10 * RATE, 160):
        transcript = model.transcribe(np.zeros(n_samples, dtype=np.float32), mode=mode)
        assert transcript.text == ""
        assert len(transcript.warnings) == 1
    tone = np.sin(np.arange(160) / 5).astype(np.float32)
    assert model.transcribe(tone, mode=mode).warnings == ("only 10 ms of audio: too short for speech",)


def test_clips_are_honoured(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk, mode="batched", clip_timestamps=(0.0, 11.0))
    assert words_of(transcript.text)[-1] == "country"
    assert all(segment.end <= 11.01 for segment in transcript.segments)


def test_every_rule_reaches_the_batched_windows(model: choral.Model, talk: np.ndarray) -> None:
    audio = talk[: 20 * RATE]
    plain = model.transcribe(audio, mode="batched")
    comma = next(t for s in plain.segments for t in s.tokens if model._transcriber.tokenizer.decode([t]) == ",")
    suppressed = model.transcribe(audio, mode="batched", suppress_tokens=(-1, comma))
    assert "," in plain.text
    assert "," not in suppressed.text
    hot = model.transcribe(
        audio, mode="batched", logprob_threshold=0.0, no_speech_threshold=None, temperature=(0.0, 0.3)
    )
    assert {segment.temperature for segment in hot.segments} == {0.3}
    skipped = model.transcribe(audio, mode="batched", no_speech_threshold=0.0, logprob_threshold=None)
    assert skipped.segments == ()
    short = model.transcribe(audio, mode="batched", max_tokens=4, temperature=0.0)
    assert all(len(segment.tokens) <= 4 for segment in short.segments)
    prompted = model.transcribe(
        audio, mode="batched", initial_prompt="and so my fellow americans ask not what", hotwords="country"
    )
    assert prompted.text != plain.text


def test_the_voice_detector_also_serves_the_sequential_mode(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk, vad=True)
    assert words_of(transcript.text).count("americans") == 2
    silence_starts_s = (talk.size / RATE - 30) / 2
    assert not [s for s in transcript.segments if silence_starts_s + 1 < s.start < silence_starts_s + 28]


def test_without_the_detector_everything_is_decoded(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk, mode="batched", vad=False)
    assert words_of(transcript.text).count("americans") == 2


def test_long_speech_is_cut_at_quiet_places() -> None:
    audio = np.random.default_rng(1).normal(0, 0.1, 100 * RATE).astype(np.float32)
    quiet = [25.0, 50.5, 76.0]  # seconds
    for second in quiet:
        audio[round((second - 0.15) * RATE) : round((second + 0.15) * RATE)] = 0
    with choral.Recording.open(audio) as recording:
        windows = cut_to_windows(recording, [Clip(0, 10_000)])
    assert [window.start for window in windows] == [0, *(clip.stop for clip in windows[:-1])]
    assert windows[-1].stop == 10_000
    assert all(window.stop - window.start <= 3000 for window in windows)
    assert [window.stop / 100 for window in windows[:3]] == pytest.approx(quiet, abs=0.1)


def test_neighbours_share_a_window() -> None:
    with choral.Recording.open(np.ones(100 * RATE, dtype=np.float32)) as recording:
        windows = cut_to_windows(recording, [Clip(0, 900), Clip(1200, 2000), Clip(2500, 2990), Clip(3100, 4000)])
    assert windows == [Clip(0, 2990), Clip(3100, 4000)]


@pytest.mark.parametrize(
    ("seconds", "clips"),
    [
        ((), [Clip(0, 1000)]),
        ((2.0,), [Clip(200, 1000)]),
        ((1.0, 3.0), [Clip(100, 300)]),
        ((1.0, 3.0, 8.0, 99.0), [Clip(100, 300), Clip(800, 1000)]),
        ((50.0,), []),
    ],
)
def test_clips_from_seconds(seconds: tuple[float, ...], clips: list[Clip]) -> None:
    assert clips_from(seconds, 1000) == clips


def test_options_that_cannot_be_right() -> None:
    for wrong in (
        {"task": "sing"},
        {"mode": "fast"},
        {"temperature": -1.0},
        {"temperature": ()},
        {"beam_size": 0},
        {"best_of": True},
        {"patience": float("nan")},
        {"length_penalty": 2.0},
        {"clip_timestamps": (5.0, 1.0)},
        {"hallucination_silence_threshold": 1.0},
        {"vad_threshold": 7},
        {"max_tokens": 0},
    ):
        with pytest.raises(choral.errors.UsageError, match=next(iter(wrong))):
            TranscribeOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("language", 5),
        ("language", ["en"]),
        ("temperature", None),
        ("temperature", "0"),
        ("temperature", True),
        ("clip_timestamps", "0,1"),
        ("clip_timestamps", ["0", "1"]),
        ("clip_timestamps", 1.5),
        ("suppress_tokens", "-1"),
        ("suppress_tokens", [1.5]),
        ("suppress_tokens", None),
        ("no_speech_threshold", float("nan")),
        ("logprob_threshold", "low"),
        ("prompt_reset_temperature", "x"),
        ("initial_prompt", 7),
        ("prepend_punctuations", None),
        ("vad", "no"),
        ("word_timestamps", "no"),
        ("seed", None),
        ("beam_size", 2.0),
    ],
)
def test_options_of_the_wrong_type(name: str, value: object) -> None:
    with pytest.raises(choral.errors.UsageError, match=f"{name} is .*; it must be "):
        TranscribeOptions.of(**{name: value})


def test_options_from_numpy_and_lists() -> None:
    options = TranscribeOptions.of(
        beam_size=np.int64(2),
        vad_threshold=np.float32(0.25),
        temperature=np.array([0.0, 0.5]),
        clip_timestamps=[0, 1],
        suppress_tokens=[-1, 5],
    )
    assert (options.beam_size, options.vad_threshold, options.temperatures) == (2, 0.25, (0.0, 0.5))
    assert (options.clip_timestamps, options.suppress_tokens) == ((0.0, 1.0), (-1, 5))
