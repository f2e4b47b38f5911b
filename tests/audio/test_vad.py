"""The voice activity detector against faster-whisper, which runs the network that Choral's was made from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from faster_whisper.vad import VadOptions, get_speech_timestamps
from onnxruntime import InferenceSession

from choral.audio import vad
from choral.audio.growing_recording import open_growing
from choral.audio.recording import Recording
from choral.audio.speech_spans import MIN_SPEECH_S, SpanFinder, speech_spans
from choral.audio.vad import VoiceDetector, find_speech, speech_probabilities
from media_files import read_clip, wav

Float32 = npt.NDArray[np.float32]

ORIGINAL = Path(str(resources.files("faster_whisper"))) / "assets" / "silero_vad_v6.onnx"


@pytest.fixture(scope="module")
def speech(speech_clips: list[Path]) -> np.ndarray:  # type: ignore[type-arg]
    """Clips of speech, two seconds of silence and two of noise after each."""
    noise = np.random.default_rng(0).normal(0, 60, 32_000).astype(np.int16)
    parts = [part for clip in speech_clips[:6] for part in (read_clip(clip), np.zeros(32_000, np.int16), noise)]
    return np.concatenate(parts)


def music(n_samples: int) -> Float32:
    """Decaying chords with vibrato, two per second, and a drum."""
    rng = np.random.default_rng(1)
    seconds = np.arange(8_000) / 16_000
    drum = rng.normal(0, 1, 8_000) * np.exp(-100 * seconds)
    chords = []
    for root in rng.choice([110.0, 130.8, 146.8, 164.8, 196.0, 220.0, 261.6], -(-n_samples // 8_000)):
        phase = 2 * np.pi * root * seconds + 0.3 * np.sin(2 * np.pi * 5 * seconds)
        chords.append(
            sum(np.sin(ratio * phase) / ratio for ratio in (1, 1.25, 1.5, 2, 3)) * np.exp(-3 * seconds) + drum
        )
    return (0.2 * np.concatenate(chords)[:n_samples]).astype(np.float32)


def noise(seconds: int) -> Float32:
    """White noise, louder every few seconds up to full scale."""
    levels = np.repeat([0.001, 0.01, 0.1, 0.5], seconds * 16_000 // 4)
    return np.random.default_rng(2).normal(0, levels).clip(-1, 1).astype(np.float32)


MATERIAL: dict[str, Callable[[Float32], Float32]] = {
    "speech": lambda speech: speech,
    "ten minutes": lambda speech: np.resize(speech, 600 * 16_000),
    "clipped": lambda speech: (30 * speech).clip(-1, 1),
    "quiet": lambda speech: 0.003 * speech,
    "over music": lambda speech: speech + music(speech.size),
    "over itself": lambda speech: 0.5 * (speech + np.roll(speech, 40_000)),
    "music": lambda _: music(60 * 16_000),
    "noise": lambda _: noise(60),
    "silence": lambda _: np.zeros(60 * 16_000, np.float32),
}


@pytest.fixture(scope="module")
def original_network() -> InferenceSession:
    return InferenceSession(str(ORIGINAL), providers=["CPUExecutionProvider"])


def probabilities_of(network: InferenceSession, samples: Float32) -> Float32:
    """Of whole frames, each with the 64 samples before it."""
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (64, 0)), 576)[::512]
    state = [np.zeros((1, 1, 128), np.float32)] * 2
    pieces = []
    for start in range(0, len(frames), 1_000):
        inputs = {"input": np.ascontiguousarray(frames[start : start + 1_000]), "h": state[0], "c": state[1]}
        probabilities, *state = network.run(None, inputs)
        pieces.append(probabilities)
    return np.concatenate(pieces)


@pytest.mark.speech
@pytest.mark.parametrize("material", MATERIAL)
def test_decisions_equal_the_original_network(
    speech: np.ndarray,  # type: ignore[type-arg]
    material: str,
    original_network: InferenceSession,
) -> None:
    samples = MATERIAL[material](speech.astype(np.float32) / 32768)
    samples = samples[: samples.size // 512 * 512]
    expected = probabilities_of(original_network, samples)
    got = speech_probabilities(Recording.open(samples))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)
    for threshold in (0.1, 0.3, 0.5, 0.7, 0.9):
        options = {"threshold": threshold, "min_silence_s": 0.2, "pad_s": 0.1}
        assert speech_spans(got, samples.size, **options) == speech_spans(expected, samples.size, **options)


def test_networks_are_made_by_the_script(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "build_vad_model.py"
    subprocess.run([sys.executable, script, ORIGINAL, tmp_path], check=True)
    for part in ("features", "recurrent"):
        name = f"silero_vad_v6_{part}.onnx"
        assert (tmp_path / name).read_bytes() == resources.files("choral").joinpath("assets", name).read_bytes()


@pytest.mark.speech
def test_probabilities_do_not_depend_on_pieces(
    speech: np.ndarray,  # type: ignore[type-arg]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = speech_probabilities(Recording.open(speech))
    monkeypatch.setattr(vad, "PIECE_SAMPLES", 37 * 512)
    in_pieces = speech_probabilities(Recording.open(wav(speech), max_memory_s=1))
    np.testing.assert_allclose(in_pieces, whole, atol=1e-5)


@pytest.mark.speech
@pytest.mark.parametrize("n_missing", [0, 1, 511])
def test_probabilities_do_not_depend_on_threads(
    speech: np.ndarray,  # type: ignore[type-arg]
    monkeypatch: pytest.MonkeyPatch,
    n_missing: int,
) -> None:
    samples = speech[: speech.size // 512 * 512 - n_missing]
    monkeypatch.setattr(vad, "PIECE_SAMPLES", 37 * 512)
    one_thread = speech_probabilities(Recording.open(samples))
    answers = iter([None, None])  # not known yet; then three threads
    monkeypatch.setattr(vad, "n_threads_for", lambda length_s: next(answers, 3))
    with open_growing(wav(samples)) as recording:
        np.testing.assert_array_equal(speech_probabilities(recording), one_thread)


@pytest.mark.speech
@pytest.mark.parametrize(("threshold", "pad_s"), [(0.3, 0.2), (0.5, 0.0), (0.8, 0.6)])
@pytest.mark.parametrize("min_silence_s", [0.1, 0.5, 2.0])
def test_spans_equal_faster_whisper(
    speech: np.ndarray,  # type: ignore[type-arg]
    threshold: float,
    pad_s: float,
    min_silence_s: float,
) -> None:
    options = VadOptions(
        threshold=threshold,
        min_silence_duration_ms=int(min_silence_s * 1000),
        speech_pad_ms=int(pad_s * 1000),
        min_speech_duration_ms=int(MIN_SPEECH_S * 1000),
    )
    expected = get_speech_timestamps(speech.astype(np.float32) / 32768, options)
    got = find_speech(Recording.open(speech), threshold=threshold, min_silence_s=min_silence_s, pad_s=pad_s)
    assert [(span.start, span.stop) for span in got] == [(span["start"], span["end"]) for span in expected]
    assert len(got) >= 1


@pytest.mark.speech
def test_spans_are_found_while_samples_arrive(speech: np.ndarray) -> None:  # type: ignore[type-arg]
    samples = speech.astype(np.float32) / 32768
    expected = find_speech(Recording.open(samples), threshold=0.5, min_silence_s=0.5, pad_s=0.2)
    finder, detector = SpanFinder(threshold=0.5, min_silence_s=0.5, pad_s=0.2), VoiceDetector()
    found, waits = [], []
    n_whole = samples.size // 1_024 * 1_024
    for start in range(0, n_whole, 1_024):
        n_received = start + 1_024
        new = finder.push(detector.predict(samples[start:n_received]).tolist())
        waits += [n_received - span.stop for span in new]
        found += new
        assert all(span.stop <= finder.min_next_start for span in found)
    assert found + finder.finish(samples.size, detector.predict(samples[n_whole:]).tolist()) == expected
    assert len(found) >= 4
    assert max(waits) < 16_000  # 0.5 s of silence, the frame that is not complete yet, and the piece


def test_silence_and_noise_have_no_spans() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 160_000).astype(np.float32)
    for samples in (np.zeros(160_000, np.float32), noise):
        assert find_speech(Recording.open(samples), threshold=0.5, min_silence_s=0.5, pad_s=0.2) == []


def test_single_sample() -> None:
    assert speech_probabilities(Recording.open(np.zeros(1, np.float32))).shape == (1,)
