"""Windows found while the audio arrives, against those of two passes over the whole recording."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.audio import vad
from choral.audio.recording import Recording
from choral.audio.speech_spans import FRAME_SAMPLES, speech_spans
from choral.longform import speech_windows
from choral.longform.cuts import NO_END, Clip, clips_from, intersect, n_mel_frames, quietest_frame
from choral.longform.speech_windows import SpeechJoiner, WindowCutter, speech_in, windows_of
from choral.options import TranscribeOptions

RATE = 16_000
N_FRAMES = 5_000  # of the voice detector: 160 s
NOISE = np.random.default_rng(1).normal(0, 0.1, N_FRAMES * FRAME_SAMPLES).astype(np.float32)
NOISE_RECORDING = Recording.open(NOISE)


def whole_windows(recording: Recording, clip: Clip, parts: list[Clip]) -> list[Clip]:
    """Windows over the parts of one clip, all of which are known."""
    windows: list[Clip] = []

    def with_pause_after(window: Clip, limit: int) -> Clip:
        return Clip(window.start, min(window.start + 3000, window.stop + 200, limit, n_mel_frames(recording)))

    for part in parts:
        start = max(part.start - 200, clip.start)
        if windows and (part.stop <= windows[-1].start + 3000 or part.start <= windows[-1].start + 2200):
            start = windows.pop().start
        elif windows:
            windows[-1] = with_pause_after(windows[-1], part.start)
            start = max(start, windows[-1].stop)
        while part.stop - start > 3000:
            cut = quietest_frame(recording, start + 2200, start + 3000)
            windows.append(Clip(start, cut))
            start = cut
        windows.append(Clip(start, part.stop))
    return [*windows[:-1], *(with_pause_after(window, clip.stop) for window in windows[-1:])]


def whole_speech(spans: list[Clip]) -> list[Clip]:
    """All speech, joined over pauses under 2 s."""
    joined: list[Clip] = []
    for span in spans:
        if joined and span.start - joined[-1].stop < 200:
            joined[-1] = Clip(joined[-1].start, span.stop)
        else:
            joined.append(span)
    return joined


def expected_windows(recording: Recording, clips: list[Clip], speech: list[Clip]) -> list[Clip]:
    pairs = zip(clips, intersect(clips, speech), strict=True)
    return [window for clip, parts in pairs for window in whole_windows(recording, clip, parts)]


FEW_FRAMES = st.integers(1, 400)
MANY_FRAMES = st.integers(1, 3500)
PAUSES = FEW_FRAMES | MANY_FRAMES | st.sampled_from([199, 200, 201])


@settings(max_examples=120, deadline=None)
@given(data=st.data(), lengths=st.lists(st.tuples(PAUSES, FEW_FRAMES | MANY_FRAMES), max_size=12))
def test_windows_do_not_depend_on_how_spans_arrive(data: st.DataObject, lengths: list[tuple[int, int]]) -> None:
    borders = np.cumsum([n_frames for pair in lengths for n_frames in pair]).tolist()
    spans = [Clip(start, stop) for start, stop in zip(borders[::2], borders[1::2], strict=True) if stop <= 16_000]
    times = sorted(data.draw(st.lists(st.integers(0, 17_000), max_size=5)))
    clips = clips_from(tuple(time / 100 for time in times), NO_END)
    joiner, cutter, windows = SpeechJoiner(), WindowCutter(NOISE_RECORDING, clips), []
    position = 0
    for span in spans:
        # What is known before the span ends: silence up to somewhere, and pieces of the span.
        position = data.draw(st.integers(position, span.start) | st.just(span.start))
        windows += cutter.settle(joiner.min_next_start(position))
        for stop in [*sorted(data.draw(st.lists(st.integers(span.start, span.stop), max_size=3))), span.stop]:
            windows += [window for part in joiner.add(span.start, stop) for window in cutter.add(part)]
            windows += cutter.settle(joiner.min_next_start(span.start))
        position = span.stop
    windows += cutter.finish()
    assert windows == expected_windows(NOISE_RECORDING, clips, whole_speech(spans))


class FixedDetector:
    """Gives the probabilities that a test wants, in place of Silero's."""

    def __init__(self, probabilities: Sequence[float]) -> None:
        self._probabilities = list(probabilities)

    def predict(self, samples: np.ndarray) -> np.ndarray:
        n_frames = -(-samples.size // FRAME_SAMPLES)
        found, self._probabilities = self._probabilities[:n_frames], self._probabilities[n_frames:]
        return np.array(found, np.float32)


def quiet_without_speech(probabilities: Sequence[float]) -> np.ndarray:
    """Noise for these probabilities, too quiet for a second opinion where there is no speech."""
    levels = np.where(np.array(probabilities) > 0.35, 1, 0.001).repeat(FRAME_SAMPLES)
    return (NOISE[: levels.size] * levels).astype(np.float32)


RUNS = st.lists(st.tuples(st.sampled_from([0.0, 0.4, 0.9]), st.integers(1, 700)), min_size=1, max_size=20)
CLIP_TIMES = st.lists(st.floats(0, 200), max_size=9).map(sorted)


@settings(max_examples=40, deadline=None)
@given(
    runs=RUNS,
    n_missing=st.integers(0, FRAME_SAMPLES - 1),
    clip_times=CLIP_TIMES,
    min_silence=st.sampled_from([0.0, 0.1, 0.5, 3.0]),
    padding=st.sampled_from([0.0, 0.05, 0.2, 3.0]),
    piece=st.integers(1, 800),
    only_speech=st.booleans(),
)
def test_windows_equal_those_of_the_whole_recording(
    runs: list[tuple[float, int]],
    n_missing: int,
    clip_times: list[float],
    min_silence: float,
    padding: float,
    piece: int,
    only_speech: bool,
) -> None:
    probabilities = [probability for probability, n_frames in runs for _ in range(n_frames)][:N_FRAMES]
    n_samples = len(probabilities) * FRAME_SAMPLES - n_missing
    options = TranscribeOptions(vad_min_silence=min_silence, vad_padding=padding)
    spans = speech_spans(
        np.array(probabilities, np.float32), n_samples, threshold=0.5, min_silence_s=min_silence, pad_s=padding
    )
    noise = 0.001 * NOISE[:n_samples]  # too quiet for a second opinion where there is no speech
    for span in spans:
        noise[span.start : span.stop] = NOISE[span.start : span.stop]
    with pytest.MonkeyPatch.context() as patch, Recording.open(noise.astype(np.float32)) as recording:
        patch.setattr(vad, "VoiceDetector", lambda: FixedDetector(probabilities))
        patch.setattr(speech_windows, "PIECE_SAMPLES", piece * 100)
        clips = clips_from(tuple(clip_times), n_mel_frames(recording))
        speech = whole_speech([Clip(span.start // 160, -(-span.stop // 160)) for span in spans])
        expected = expected_windows(recording, clips, speech if only_speech else clips)
        requested = clips_from(tuple(clip_times), NO_END)
        windows = list(windows_of(recording, requested, options, only_speech=only_speech))
        assert [Clip(window.start, window.stop) for window in windows] == expected
        if only_speech:
            frames = [Clip(span.start // 160, -(-span.stop // 160)) for span in spans]
            assert [list(window.speech) for window in windows] == list(intersect(expected, frames))
            assert speech_in(recording, clips, options) == [p for parts in intersect(clips, speech) for p in parts]


def test_a_window_needs_little_audio_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither speech without a pause nor silence delays windows: none waits for more than 50 s of audio."""
    seconds = np.arange(N_FRAMES) * FRAME_SAMPLES / RATE
    for speech in (seconds >= 0, seconds % 100 < 20, seconds % 40 < 39.5):
        monkeypatch.setattr(vad, "VoiceDetector", lambda speech=speech: FixedDetector(speech.astype(float).tolist()))
        n_read = 0

        class CountingRecording(Recording):
            def samples(self, start: int, stop: int) -> np.ndarray:
                nonlocal n_read
                n_read = max(n_read, stop)
                return super().samples(start, stop)

        recording = CountingRecording.open(quiet_without_speech(speech.astype(float).tolist()))
        waits_s = [
            n_read / RATE - window.start / 100
            for window in windows_of(recording, [Clip(0, NO_END)], TranscribeOptions(), only_speech=True)
        ]
        assert len(waits_s) >= 2
        assert max(waits_s) <= 50


def test_search_ends_with_the_last_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = FixedDetector([0.9] * N_FRAMES)
    monkeypatch.setattr(vad, "VoiceDetector", lambda: detector)
    with Recording.open(NOISE) as recording:
        [window] = windows_of(recording, [Clip(100, 900)], TranscribeOptions(), only_speech=True)
    assert (window.start, window.stop, window.speech) == (100, 900, (Clip(100, 900),))
    assert len(detector._probabilities) > N_FRAMES / 2


def cut(recording: Recording, parts: list[Clip]) -> list[Clip]:
    cutter = WindowCutter(recording, [Clip(0, NO_END)])
    return [*(window for part in parts for window in cutter.add(part)), *cutter.finish()]


def test_long_speech_is_cut_at_quiet_places() -> None:
    audio = np.random.default_rng(1).normal(0, 0.1, 100 * RATE).astype(np.float32)
    quiet = [25.0, 50.5, 76.0]  # seconds
    for second in quiet:
        audio[round((second - 0.15) * RATE) : round((second + 0.15) * RATE)] = 0
    with Recording.open(audio) as recording:
        windows = cut(recording, [Clip(0, 10_000)])
    assert [window.start for window in windows] == [0, *(clip.stop for clip in windows[:-1])]
    assert windows[-1].stop == 10_000
    assert all(window.stop - window.start <= 3000 for window in windows)
    assert [window.stop / 100 for window in windows[:3]] == pytest.approx(quiet, abs=0.1)


def test_neighbouring_parts_share_a_window() -> None:
    with Recording.open(np.ones(100 * RATE, dtype=np.float32)) as recording:
        windows = cut(recording, [Clip(0, 900), Clip(1200, 2000), Clip(2500, 2990), Clip(3100, 4000)])
    assert windows == [Clip(0, 3000), Clip(3000, 4200)]


def test_a_part_that_does_not_fit_fills_the_window_before_it() -> None:
    audio = np.ones(60 * RATE, dtype=np.float32)
    audio[27 * RATE : 28 * RATE] = 0
    with Recording.open(audio) as recording:
        windows = cut(recording, [Clip(0, 900), Clip(1200, 4000)])
    assert windows == [Clip(0, 2750), Clip(2750, 4200)]
