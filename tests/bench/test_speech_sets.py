"""The sets of `choral bench wer`: the same samples for a seed, and what each condition does to speech."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from choral.audio.vad import VoiceDetector
from choral.bench.clips import AudioClip, Samples
from choral.bench.labelled_clips import LabelledClip
from choral.bench.speech_sets import SET_NAMES, SetClip, set_clips
from choral.errors import AudioNotFound
from choral.remote.speech_samples import SpeechSample

RATE = 16_000
SECONDS = 40.0


@pytest.fixture(scope="module")
def corpus(librivox: tuple[SpeechSample, ...]) -> list[LabelledClip]:
    """One clip in another language, which is not mixed with the others."""
    clips = [LabelledClip(sample.path.name, sample.path, sample.text, "en") for sample in librivox]
    return [*clips, LabelledClip("fr", clips[0].path, "bonjour", "fr")]


@pytest.fixture(scope="module")
def made(corpus: list[LabelledClip]) -> dict[str, AudioClip]:
    return {name: one(set_clips(name, corpus, SECONDS)).audio for name in SET_NAMES[1:-1]}


def one(clips: object) -> SetClip:
    [clip] = clips  # type: ignore[misc]
    return clip


def above_3400_hz(samples: Samples) -> float:
    """The share of the energy."""
    power = np.square(np.abs(np.fft.rfft(samples)))
    return float(power[round(3450 * samples.size / RATE) :].sum() / power.sum())


def test_mixed_joins_all_clips_with_pauses(corpus: list[LabelledClip], made: dict[str, AudioClip]) -> None:
    mixed = made["mixed"]
    assert SECONDS <= mixed.duration_s < SECONDS + 15
    assert mixed.language == "en"
    assert mixed.text is not None
    assert all(clip.text in mixed.text for clip in corpus[:-1])
    assert "bonjour" not in mixed.text
    again = one(set_clips("mixed", corpus, SECONDS)).audio
    assert np.array_equal(again.samples, mixed.samples)
    other = one(set_clips("mixed", corpus, SECONDS, seed=2)).audio
    assert other.text != mixed.text


def test_conditions(made: dict[str, AudioClip]) -> None:
    mixed = made["mixed"].samples
    assert {clip.text for clip in made.values()} == {made["mixed"].text}
    for name in ("noise", "music"):
        difference = made[name].samples - mixed
        active = np.square(mixed).reshape(-1, 5)[:, 0] > np.square(mixed).mean()
        ratio_db = 10 * np.log10(np.square(mixed[::5][active]).mean() / np.square(difference).mean())
        assert 10 < ratio_db < 20, name  # the loudest parts are above the level of speech
    assert above_3400_hz(made["telephone"].samples) < 0.01 < above_3400_hz(mixed)
    assert np.abs(made["far"].samples).max() < 0.05
    assert made["fast"].duration_s == pytest.approx(made["mixed"].duration_s / 1.4, rel=0.01)


def test_non_speech_has_no_speech_and_no_words() -> None:
    clips = list(set_clips("non-speech", [], 70.0))
    assert len({clip.name for clip in clips}) == 7
    for clip in clips:
        assert (clip.audio.text, clip.audio.duration_s) == ("", 10.0)
        assert float(VoiceDetector().predict(clip.audio.samples).max()) < 0.5, clip.name


def test_clips_that_cannot_be_joined(tmp_path: Path) -> None:
    from choral.bench.clips import write_flac

    write_flac(tmp_path / "long.flac", np.zeros(31 * RATE, np.int16))
    with pytest.raises(AudioNotFound, match="at most 30 s"):
        one(set_clips("mixed", [LabelledClip("long", tmp_path / "long.flac", "", "en")], 5.0))
