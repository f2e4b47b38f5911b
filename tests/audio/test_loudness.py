"""Loudness against ffmpeg's meter, and the samples after normalisation."""

from __future__ import annotations

import math
import re
from pathlib import Path

import av
import av.filter
import av.logging
import numpy as np
import pytest

from choral.audio.loudness import measure_loudness, normalize_loudness
from choral.audio.recording import Recording
from choral.errors import UsageError
from choral.options import LoudnessKind, TranscribeOptions
from media_files import RATE, Int16Samples, encode, read_clip


def ffmpeg_lufs(clip: Int16Samples) -> float:
    """The integrated loudness by ffmpeg's ebur128 filter."""
    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=RATE, format="s16", layout="mono")
    meter, sink = graph.add("ebur128", "framelog=quiet"), graph.add("abuffersink")
    source.link_to(meter)
    meter.link_to(sink)
    graph.configure()
    frame = av.AudioFrame.from_ndarray(clip[None].copy(), format="s16", layout="mono")
    frame.sample_rate = RATE
    with av.logging.Capture() as said:
        av.logging.set_level(av.logging.INFO)
        source.push(frame)
        source.push(None)
        while True:
            try:
                sink.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                break
        del source, meter, sink, graph
        av.logging.set_level(None)
    text = "".join(message for _, _, message in said)
    return float(re.findall(r"I:\s+(-?[\d.]+) LUFS", text)[-1])


@pytest.mark.parametrize("gain", [1.0, 0.1, 0.01])
def test_integrated_loudness_equals_ffmpeg(speech_clips: list[Path], gain: float) -> None:
    for path in speech_clips:
        clip = (read_clip(path) * gain).astype(np.int16)
        assert measure_loudness(Recording.open(clip), "ebu") == pytest.approx(ffmpeg_lufs(clip), abs=0.1)


def test_pauses_are_gated_out(speech_clips: list[Path]) -> None:
    clip = read_clip(speech_clips[0])
    pause = np.zeros(20 * RATE + 777, np.int16)
    long = np.concatenate([pause, clip, pause, *[clip] * 20, pause])
    assert measure_loudness(Recording.open(long), "ebu") == pytest.approx(ffmpeg_lufs(long), abs=0.1)
    assert measure_loudness(Recording.open(long), "ebu") == pytest.approx(
        measure_loudness(Recording.open(clip), "ebu"), abs=0.3
    )


def test_known_levels() -> None:
    tone = np.sin(2 * np.pi * 997 * np.arange(20 * RATE) / RATE).astype(np.float32)
    assert measure_loudness(Recording.open(tone), "ebu") == pytest.approx(
        -3.01, abs=0.05
    )  # as BS.1770 defines its scale
    assert measure_loudness(Recording.open(tone), "rms") == pytest.approx(-3.01, abs=0.01)
    assert measure_loudness(Recording.open(tone / 100), "ebu") == pytest.approx(-43.01, abs=0.05)
    assert measure_loudness(Recording.open(tone[: RATE // 5]), "ebu") == pytest.approx(-3.01, abs=0.3)  # half a block
    assert measure_loudness(Recording.open(np.zeros(RATE, np.int16)), "ebu") == -math.inf
    assert measure_loudness(Recording.open(np.zeros(RATE, np.int16)), "rms") == -math.inf
    assert measure_loudness(Recording.open(tone[:100]), "ebu") == -math.inf  # not one hop of 100 ms


@pytest.mark.parametrize(("kind", "target_db"), [("ebu", -23.0), ("rms", -20.0), ("ebu", -30.0), ("rms", -35.5)])
def test_normalize_to_target(speech_clips: list[Path], kind: LoudnessKind, target_db: float) -> None:
    for gain in (1.0, 0.05):
        recording = Recording.open((read_clip(speech_clips[0]) * gain).astype(np.int16))
        changed = normalize_loudness(recording, kind, target_db)
        assert changed.n_samples == recording.n_samples
        assert np.abs(changed.samples(0, changed.n_samples)).max() == pytest.approx(changed.peak, rel=1e-6)
        assert changed.peak < 1
        assert measure_loudness(changed, kind) == pytest.approx(target_db, abs=0.02)


def test_gain_is_constant_and_does_not_clip() -> None:
    clip = (np.sin(np.arange(RATE * 3) * 0.3) * 100).astype(np.int16)
    clip[5_000] = 30_000  # a click that must not be clipped
    recording = Recording.open(encode(clip, "flac", "flac"), max_memory_s=0)
    changed = normalize_loudness(recording, "rms", -20)
    gain = 32_768 / 30_000
    assert changed.peak == pytest.approx(1.0)
    np.testing.assert_allclose(changed.samples(0, 50_000), recording.samples(0, 50_000) * gain, rtol=1e-5)
    assert (changed.name, changed.warnings) == (recording.name, recording.warnings)


def test_silence_is_not_amplified() -> None:
    hiss = np.random.default_rng(0).integers(-2, 3, RATE).astype(np.int16)
    recording = Recording.open(hiss)
    assert recording.is_silent
    assert normalize_loudness(recording, "rms") is recording
    faint = Recording.open(hiss * np.int16(3))  # not silent, but below the gate of R128
    assert not faint.is_silent
    assert normalize_loudness(faint, "ebu") is faint


def test_invalid_loudness_options() -> None:
    with pytest.raises(UsageError, match="no effect without loudness"):
        TranscribeOptions(loudness_target=-20)
    with pytest.raises(UsageError, match="from -70 to 0"):
        TranscribeOptions(loudness="ebu", loudness_target=3)
    assert TranscribeOptions(loudness="rms", loudness_target=-18).loudness_target == -18
