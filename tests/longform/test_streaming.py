"""Transcription of a recording that is still being decoded: the same results, early text, errors, cancellation."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choral
from choral.audio.growing_recording import open_growing
from choral.audio.recording import Cancelled
from choral.errors import AudioError
from choral.options import TranscribeOptions
from gated_file import GatedFile
from media_files import Int16Samples, encode, read_clip, wav

RATE = 16_000
WAIT_S = 60  # for threads on a busy machine


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_pt, device="cpu") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def talk(speech_clips: list[Path]) -> Int16Samples:
    """A minute and a half: sentences, a pause of 20 s, the same sentences."""
    pause = np.zeros(RATE, np.int16)
    once = np.concatenate([part for clip in speech_clips for part in (read_clip(clip), pause)])
    return np.concatenate([once, np.zeros(20 * RATE, np.int16), once])


BATCHED = TranscribeOptions(mode="batched", temperature=0.0, word_timestamps=True, hallucination_silence_threshold=2.0)


@pytest.fixture(scope="module")
def decoded_before(model: choral.Model, talk: Int16Samples) -> choral.Transcript:
    with choral.Recording.open(wav(talk)) as recording:
        return model.transcribe(recording, BATCHED)


def without_scores(segments: Iterable[choral.Segment]) -> list[choral.Segment]:
    """Scores differ in the last digit with what else is in a batch."""
    return [
        replace(
            segment,
            avg_logprob=0,
            no_speech_prob=0,
            words=tuple(replace(w, probability=0) for w in segment.words or ()),
        )
        for segment in segments
    ]


@pytest.mark.speech
def test_text_comes_while_the_source_is_being_read(
    model: choral.Model, talk: Int16Samples, decoded_before: choral.Transcript
) -> None:
    file = GatedFile(wav(talk), 45 * RATE * 2)
    segments = model.stream(file, BATCHED)
    early = [next(segments), next(segments)]  # hangs if it needs more than the first 45 s
    file.open_gate()
    assert without_scores([*early, *segments]) == without_scores(decoded_before.segments)


OPTIONS: dict[str, dict[str, Any]] = {
    "batched, clips": {"mode": "batched", "clip_timestamps": (3.0, 9.0, 9.0, 20.0)},
    "batched, all audio": {"mode": "batched", "vad": False, "loudness": "ebu", "clip_timestamps": (0.0, 35.0)},
    "sequential": {"clip_timestamps": (0.0, 12.0), "word_timestamps": True},
    "sequential, speech": {"vad": True, "loudness": "rms", "clip_timestamps": (25.0, 60.0)},
}


@pytest.mark.speech
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_transcript_of_a_decoded_recording(name: str, model: choral.Model, talk: Int16Samples) -> None:
    media = encode(talk, "mp3", "libmp3lame")
    options = TranscribeOptions.of(**OPTIONS[name], temperature=0.0)
    progress: list[tuple[float, float]] = []
    with choral.Recording.open(media) as recording:
        expected = model.transcribe(recording, options)
    got = model.transcribe(media, options, on_progress=lambda done_s, total_s: progress.append((done_s, total_s)))
    assert len(got.segments) > 1
    assert without_scores(got.segments) == without_scores(expected.segments)
    assert replace(got, segments=()) == replace(expected, segments=())
    assert [done_s for done_s, _ in progress] == sorted(done_s for done_s, _ in progress)
    assert all(done_s <= total_s for done_s, total_s in progress)
    assert progress[-1] == (got.duration, got.duration)


@pytest.mark.speech
def test_decoder_error_in_the_middle(
    model: choral.Model, talk: Int16Samples, decoded_before: choral.Transcript
) -> None:
    """What is known before the error is transcribed and reported; then the request fails."""
    file, segments = GatedFile(wav(talk), 45 * RATE * 2), []
    file.fail(OSError(5, "Input/output error"))
    with pytest.raises(AudioError, match=r"gated\.wav could not be read: Input/output error"):
        model.transcribe(file, BATCHED, on_segment=segments.append)
    assert segments
    assert without_scores(segments) == without_scores(decoded_before.segments[: len(segments)])
    file = GatedFile(wav(talk), 45 * RATE * 2)
    file.fail(OSError(5, "Input/output error"))
    with pytest.raises(AudioError, match="Input/output error"):  # although the clip is intact: a damaged file fails
        model.transcribe(file, replace(BATCHED, clip_timestamps=(0.0, 2.0)))


@pytest.mark.speech
@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_cancel_while_waiting_for_samples(mode: str, model: choral.Model, talk: Int16Samples) -> None:
    file = GatedFile(wav(talk), 20 * RATE * 2)
    with open_growing(file) as recording:
        transcription = model.begin(recording, TranscribeOptions.of(mode=mode))
        timer = threading.Timer(0.2, transcription.cancel)
        timer.start()
        with pytest.raises(CancelledError):
            list(transcription)
        timer.join()
        file.open_gate()
        assert recording.n_samples == talk.size  # the recording is the caller's, and goes on
        cancelled = model.begin(recording, TranscribeOptions.of(mode=mode))
        cancelled.cancel()
        with pytest.raises(CancelledError):
            list(cancelled)


@pytest.mark.speech
def test_closing_the_recording_ends_the_transcription(model: choral.Model, talk: Int16Samples) -> None:
    threads_before = set(threading.enumerate())
    file = GatedFile(wav(talk), 45 * RATE * 2)
    recording = open_growing(file)
    segments = iter(model.begin(recording, TranscribeOptions(mode="batched", temperature=0.0)))
    next(segments)
    threading.Timer(0.2, recording.close).start()
    with pytest.raises(Cancelled):
        list(segments)
    file.open_gate()
    for thread in set(threading.enumerate()) - threads_before:
        thread.join(WAIT_S)
        assert not thread.is_alive()
