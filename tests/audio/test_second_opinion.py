"""The second opinion: speech that the voice detector did not hear is found, other sounds are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from choral.audio import vad
from choral.audio.recording import Recording
from choral.audio.second_opinion import SecondOpinion
from choral.audio.speech_spans import SpeechSpan
from choral.bench.audio_effects import Effect, add_music, far, telephone
from choral.longform.speech_windows import heard_in
from choral.options import TranscribeOptions
from media_files import read_clip

RATE = 16_000
Float32 = np.ndarray


@pytest.fixture(scope="module")
def clip(speech_clips: list[Path]) -> Float32:
    return (read_clip(speech_clips[0]) / 32768).astype(np.float32)


def found_after(speech: Float32, audio: Float32) -> list[SpeechSpan]:
    """What is found in audio in which the detector heard nothing, after speech."""
    with Recording.open(np.concatenate([speech, audio])) as recording:
        opinion = SecondOpinion(recording, threshold=0.5, min_silence_s=0.5, pad_s=0.2)
        heard = SpeechSpan(0, speech.size)
        assert opinion.add([heard]) == [heard]
        return opinion.search_until(recording.n_samples)


@pytest.mark.speech
def test_only_loud_speech_is_found(clip: Float32) -> None:
    rng, seconds = np.random.default_rng(0), np.arange(8 * RATE) / RATE
    found = found_after(clip, clip)
    assert sum(span.stop - span.start for span in found) > 0.7 * clip.size
    assert all(clip.size <= span.start < span.stop <= 2 * clip.size for span in found)
    level = float(np.sqrt(np.mean(clip**2)))
    tones = [np.sin(2 * np.pi * pitch * seconds) * np.exp(-3 * (seconds % 0.5)) for pitch in (220, 277, 330)]
    others = [np.zeros(8 * RATE), rng.normal(0, level, 8 * RATE), np.sum(tones, axis=0) * level, 0.03 * clip]
    for other in others:
        assert found_after(clip, other.astype(np.float32)) == []


@pytest.mark.speech
@pytest.mark.parametrize("effect", [telephone, add_music, far])
def test_speech_of_which_the_detector_is_not_sure_is_found(effect: Effect, speech_clips: list[Path]) -> None:
    """It needs a level of its own and the lower threshold."""
    clips = [(read_clip(path) / 32768).astype(np.float32) for path in speech_clips[:3]]
    quiet = effect(0.1 * np.concatenate(clips), np.random.default_rng(1))
    found = found_after(clips[0], quiet)
    assert sum(span.stop - span.start for span in found) > 0.7 * quiet.size


@pytest.mark.speech
def test_a_deaf_detector_does_not_lose_speech(clip: Float32, monkeypatch: pytest.MonkeyPatch) -> None:
    pause = np.zeros(RATE, np.float32)
    audio = np.concatenate([clip, pause, clip, pause, clip])
    options = TranscribeOptions(mode="batched")
    with Recording.open(audio) as recording:
        expected = heard_in(recording, options)
        detector = vad.VoiceDetector

        class DeafDetector(detector):  # type: ignore[misc, valid-type]
            """Hears the first clip only."""

            def predict(self, samples: Float32) -> Float32:
                monkeypatch.setattr(vad, "VoiceDetector", detector)  # the next one hears
                probabilities = super().predict(samples)
                n_heard = clip.size // 512 if not hasattr(self, "is_late") else 0
                self.is_late = True
                probabilities[n_heard:] = 0
                return probabilities

        monkeypatch.setattr(vad, "VoiceDetector", DeafDetector)
        heard = heard_in(recording, options)
    n_expected, n_heard = (sum(span.stop - span.start for span in spans) for spans in (expected, heard))
    assert n_heard > 0.9 * n_expected
