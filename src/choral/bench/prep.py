"""Speed of what happens before the model: decoding, mel spectrograms beside other packages, voice detection.

`measure` runs everything and gives a `PrepReport`; `report` writes it as lines. Packages that are not installed are
left out. Rounds are interleaved, so that a busy moment of the machine hits all alike.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.audio.mel import log_mel
from choral.audio.recording import AudioInput, Recording
from choral.audio.vad import speech_probabilities
from choral.bench.machine import Machine, this_machine
from choral.bench.made_up import FORMATS, sound_bytes

ROUNDS = 25
MADE_UP_S = 120
N_MELS = (80, 128)

Samples = npt.NDArray[np.float32]
Extractor = Callable[[Samples], object]


@dataclass(frozen=True)
class MelTime:
    """Median time of one 30 s window."""

    name: str
    n_mels: int
    window_ms: float
    times_choral: float  # how many times as long as Choral takes


@dataclass(frozen=True)
class PrepReport:
    audio: str
    duration_s: float
    mel: tuple[MelTime, ...]
    decode_speed: float  # seconds of audio per second
    vad_speed: float
    machine: Machine


def measure(audio: str | Path | None = None, *, rounds: int = ROUNDS) -> PrepReport:
    """Measures with `audio`, or with sound made up for the purpose."""
    given: AudioInput = made_up_mp3() if audio is None else audio
    with Recording.open(given) as recording:
        decode_s = _median_s([_seconds(lambda: Recording.open(given).close()) for _ in range(_few(rounds))])
        vad_s = _median_s([_seconds(lambda: speech_probabilities(recording)) for _ in range(_few(rounds))])
        window = np.resize(recording.samples(0, WINDOW_SAMPLES), WINDOW_SAMPLES)
        return PrepReport(
            audio="made-up sound, mp3" if audio is None else recording.name,
            duration_s=recording.duration,
            mel=tuple(time for n_mels in N_MELS for time in _mel_times(window, n_mels, rounds)),
            decode_speed=recording.duration / decode_s,
            vad_speed=recording.duration / vad_s,
            machine=this_machine(),
        )


def report(measured: PrepReport) -> str:
    machine = measured.machine
    lines = [f"{measured.audio}, {measured.duration_s:.1f} s, on {machine.cpu} ({machine.n_cpus} cores)", ""]
    lines += [f"{'mel of 30 s':30} {'bins':>5} {'ms':>8} {'× choral':>9}"]
    lines += [f"{mel.name:30} {mel.n_mels:>5} {mel.window_ms:>8.2f} {mel.times_choral:>9.2f}" for mel in measured.mel]
    lines += ["", f"decoding         {measured.decode_speed:>7.0f} × real time"]
    lines += [f"voice detection  {measured.vad_speed:>7.0f} × real time", ""]
    return "\n".join(lines)


def _mel_times(window: Samples, n_mels: int, rounds: int) -> list[MelTime]:
    extractors = {"choral": _choral(n_mels)} | _peers(n_mels)
    times_s: dict[str, list[float]] = {name: [] for name in extractors}
    for extract in extractors.values():
        extract(window)  # the first call loads and allocates
    for _ in range(rounds):
        for name, extract in extractors.items():
            times_s[name].append(_seconds(lambda extract=extract: extract(window)))  # type: ignore[misc]
    medians_s = {name: _median_s(times) for name, times in times_s.items()}
    return [
        MelTime(name, n_mels, median_s * 1e3, median_s / medians_s["choral"]) for name, median_s in medians_s.items()
    ]


def _choral(n_mels: int) -> Extractor:
    return lambda samples: log_mel(samples, n_mels, n_frames=WINDOW_MEL_FRAMES)


def _peers(n_mels: int) -> dict[str, Extractor]:
    peers: dict[str, Extractor] = {}
    if _is_installed("whisper"):
        whisper = importlib.import_module("whisper")
        peers["openai-whisper (torch)"] = lambda samples: whisper.log_mel_spectrogram(samples, n_mels)
    if _is_installed("faster_whisper"):
        faster = importlib.import_module("faster_whisper.feature_extractor").FeatureExtractor(feature_size=n_mels)
        peers["faster-whisper (numpy)"] = lambda samples: faster(samples, padding=0)
    if _is_installed("transformers"):
        hugging = importlib.import_module("transformers").WhisperFeatureExtractor(feature_size=n_mels)
        # Its public call picks torch where it can; this is what it does without.
        peers["transformers (numpy)"] = lambda samples: hugging._np_extract_fbank_features(samples[None], "cpu")
        if _is_installed("torch"):
            peers["transformers (torch)"] = lambda samples: hugging(samples, sampling_rate=SAMPLE_RATE)
    return peers


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _seconds(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def _median_s(times_s: list[float]) -> float:
    return statistics.median(times_s)


def _few(rounds: int) -> int:
    return max(1, rounds // 8)


def made_up_mp3() -> bytes:
    return sound_bytes(FORMATS[0], MADE_UP_S)
