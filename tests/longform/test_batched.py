"""Batched mode: no text is lost at cuts, every option applies, silence gives no text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.longform.chain_types import Accepted, Attempt, ChainContext, WindowRange
from choral.longform.invented import drop_invented

RATE = 16_000


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_pt, device="cpu", compute_type="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def talk(jfk: Path, speech_clips: list[Path]) -> np.ndarray:
    """Two minutes: sentences with pauses, and 30 s of silence in the middle."""
    clips = []
    for path in [jfk, *speech_clips]:
        with choral.Recording.open(path) as recording:
            clips.append(recording.samples(0, recording.n_samples))
    pause = np.zeros(RATE, dtype=np.float32)
    once = np.concatenate([part for clip in clips for part in (clip, pause)])
    return np.concatenate([once, np.zeros(30 * RATE, dtype=np.float32), once])


def words_of(text: str) -> list[str]:
    return "".join(letter for letter in text.lower() if letter.isalpha() or letter == " ").split()


def test_all_text_is_found_at_the_right_times(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk, mode="batched", word_timestamps=True)
    words = words_of(transcript.text)
    for phrase in ("what you can do for your country", "leisure to consider", "rather selfish", "amiable himself"):
        assert " ".join(words).count(phrase) == 2
    times = [time for word in transcript.words for time in (word.start, word.end)]
    assert times == sorted(times)
    first, second = (word.start for word in transcript.words if word.text.strip(" ,") == "Americans")
    gap_s = (talk.size / RATE - 30) / 2 + 30
    assert second - first == pytest.approx(gap_s, abs=0.2)


def test_auto_is_batched_for_more_than_one_window(model: choral.Model, talk: np.ndarray) -> None:
    def mode_of(audio: np.ndarray, **options: object) -> str:
        with choral.Recording.open(audio) as recording:
            transcription = model.transcriber.start(recording, choral.TranscribeOptions.of(**options))
            next(transcription.chains())
            transcription.cancel()
            return str(transcription.options.mode)

    window = talk[: 30 * RATE]
    longer = talk[: 30 * RATE + 1]
    assert mode_of(window) == mode_of(longer, vad=False) == mode_of(longer, mode="sequential") == "sequential"
    assert mode_of(longer) == mode_of(longer, vad=True) == mode_of(window, mode="batched") == "batched"


def test_silence_gives_no_text(model: choral.Model) -> None:
    rng = np.random.default_rng(0)
    for audio in (np.zeros(40 * RATE, dtype=np.float32), rng.normal(0, 3e-4, 40 * RATE).astype(np.float32)):
        transcript = model.transcribe(audio, mode="batched")
        assert (transcript.text, transcript.segments) == ("", ())
        assert len(transcript.warnings) == 1


def test_doubtful_text_is_kept_only_where_somebody_speaks(model: choral.Model, jfk: Path) -> None:
    """With this threshold, all text is improbable at every temperature; openai-whisper keeps it."""
    noise = np.random.default_rng(0).normal(0, 0.2, 10 * RATE).astype(np.float32)
    doubts = {"temperature": 0.0, "logprob_threshold": 0.0, "no_speech_threshold": None}
    assert model.transcribe(noise, **doubts).text.strip() != ""
    assert model.transcribe(noise, mode="batched", vad=False, **doubts).segments == ()
    for audio in (jfk, np.concatenate([noise, choral.Recording.open(jfk).samples(0, 11 * RATE)])):
        words = words_of(model.transcribe(audio, mode="batched", vad=False, **doubts).text)
        assert " ".join(words).endswith("can do for your country")


def test_text_as_improbable_as_noise_is_dropped_whatever_the_audio(model: choral.Model, jfk: Path) -> None:
    tokenizer, options = model.transcriber.tokenizer, choral.TranscribeOptions(mode="batched")
    segment = choral.Segment(0, 0, 1.0, 9.0, " L", (1,), 1.0, -1.5, 0.5, 0.1)
    attempt = Attempt((1,), " L", 1.0, -1.5, 0.1, 0.5, None)
    with choral.Recording.open(jfk) as recording:
        context = ChainContext(recording, options, tokenizer, "en", 448, None)
        window, accepted = WindowRange(0, 1100), Accepted((segment,), 900)
        assert drop_invented(accepted, attempt, window, context) == accepted
        dropped = drop_invented(accepted, replace(attempt, avg_logprob=-2.5), window, context)
    assert dropped == Accepted((), 1100, is_discarded=True)


def test_text_that_the_model_takes_for_silence_needs_a_voice(model: choral.Model, jfk: Path) -> None:
    segment = choral.Segment(0, 0, 1.0, 9.0, " You", (1,), 0.0, -0.4, 0.3, 0.7)
    attempt = Attempt((1,), " You", 0.0, -0.4, 0.7, 0.3, None)
    tone = np.sin(np.arange(11 * RATE) / 5).astype(np.float32)
    kept = []
    for audio in (jfk, tone):
        with choral.Recording.open(audio) as recording:
            options = choral.TranscribeOptions(mode="batched")
            context = ChainContext(recording, options, model.transcriber.tokenizer, "en", 448, None)
            kept.append(drop_invented(Accepted((segment,), 900), attempt, WindowRange(0, 1100), context).segments)
    assert kept == [(segment,), ()]


@pytest.mark.parametrize("mode", ["sequential", "batched"])
def test_silent_and_very_short_audio(mode: str, model: choral.Model) -> None:
    for n_samples in (10 * RATE, 160):
        transcript = model.transcribe(np.zeros(n_samples, dtype=np.float32), mode=mode)
        assert transcript.text == ""
        assert len(transcript.warnings) == 1
    tone = np.sin(np.arange(160) / 5).astype(np.float32)
    assert model.transcribe(tone, mode=mode).warnings == ("only 10 ms of audio: too short for speech",)


def test_clip_timestamps(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk, mode="batched", clip_timestamps=(0.0, 11.0))
    assert words_of(transcript.text)[-1] == "country"
    assert all(segment.end <= 11.01 for segment in transcript.segments)


def test_windows_do_not_cover_what_lies_between_clips(model: choral.Model, jfk: Path) -> None:
    """The clips fit one window together; the stretch between them says "ask not what your country can do for you"."""
    for vad in (None, False):
        transcript = model.transcribe(jfk, mode="batched", clip_timestamps=(0.0, 3.0, 8.2, 11.0), vad=vad)
        words = words_of(transcript.text)
        assert words[:2] == ["and", "so"]
        assert words[-1] == "country"
        assert "not" not in words
        assert not [segment for segment in transcript.segments if segment.start < 8 and segment.end > 3.5]


def test_touching_clips_are_separate_windows(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk, mode="batched", clip_timestamps=(0.0, 5.0, 5.0, 11.0), vad=False)
    assert {segment.seek for segment in transcript.segments} == {0, 500}


def test_too_many_clips_for_the_audio(model: choral.Model, talk: np.ndarray) -> None:
    clips = tuple(i / 100 for i in range(1000))  # 500 clips of 10 ms
    with pytest.raises(choral.errors.UsageError, match=r"500 clips in 10 s of audio; it must have at most 26"):
        model.transcribe(talk[: 10 * RATE], clip_timestamps=clips)


def test_clips_outside_the_audio_give_one_warning(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk[: 5 * RATE], mode="batched", clip_timestamps=(50.0,))
    assert transcript.segments == ()
    assert transcript.warnings == ("clip_timestamps lie outside the audio: nothing to transcribe",)


def test_decoding_options_apply_to_batched_windows(model: choral.Model, talk: np.ndarray) -> None:
    audio = talk[: 20 * RATE]
    plain = model.transcribe(audio, mode="batched")
    first = next(t for s in plain.segments for t in s.tokens if t < model.transcriber.tokenizer.eot)
    suppressed = model.transcribe(audio, mode="batched", suppress_tokens=(-1, first))
    assert suppressed.segments
    assert all(first not in segment.tokens for segment in suppressed.segments)
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


def test_sequential_mode_with_vad(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk, vad=True)
    assert words_of(transcript.text).count("americans") == 2
    silence_starts_s = (talk.size / RATE - 30) / 2
    assert not [s for s in transcript.segments if silence_starts_s + 1 < s.start < silence_starts_s + 28]


def test_batched_mode_without_vad(model: choral.Model, talk: np.ndarray) -> None:
    transcript = model.transcribe(talk, mode="batched", vad=False)
    assert words_of(transcript.text).count("americans") == 2
