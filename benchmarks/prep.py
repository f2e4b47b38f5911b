"""How fast are decoding, mel spectrograms (compared with other packages) and voice activity detection?

AUDIO is the file to measure with (default: synthetic audio as mp3). Packages that are not installed are left out.
Rounds of the packages alternate, so that other load on the machine affects all of them alike.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.audio.mel import log_mel
from choral.audio.recording import AudioInput, Recording
from choral.audio.vad import speech_probabilities
from choral.bench.report import json_line, this_machine
from choral.bench.synthetic_audio import AUDIO_FORMATS, synthetic_bytes
from choral.cli.arguments import Parser
from choral.cli.console import write_stdout
from support.script import run_script

ROUNDS = 25
SYNTHETIC_S = 120
N_MELS = (80, 128)

Samples = npt.NDArray[np.float32]
Extractor = Callable[[Samples], object]


@dataclass(frozen=True)
class MelTime:
    """Median time of one 30 s window."""

    name: str
    n_mels: int
    window_ms: float
    times_choral: float  # ratio to Choral's time


@dataclass(frozen=True)
class PrepResult:
    audio: str
    duration_s: float
    mel: tuple[MelTime, ...]
    decode_speed: float  # seconds of audio per second
    vad_speed: float


def measure(audio: str | None = None, *, rounds: int = ROUNDS) -> PrepResult:
    source: AudioInput = synthetic_bytes(AUDIO_FORMATS[0], SYNTHETIC_S) if audio is None else audio
    n_slow_rounds = max(1, rounds // 8)
    with Recording.open(source) as recording:
        decode_s = statistics.median(_seconds(lambda: Recording.open(source).close()) for _ in range(n_slow_rounds))
        vad_s = statistics.median(_seconds(lambda: speech_probabilities(recording)) for _ in range(n_slow_rounds))
        window = np.resize(recording.samples(0, WINDOW_SAMPLES), WINDOW_SAMPLES)
        return PrepResult(
            audio="synthetic audio, mp3" if audio is None else recording.name,
            duration_s=recording.duration,
            mel=tuple(time for n_mels in N_MELS for time in _mel_times(window, n_mels, rounds)),
            decode_speed=recording.duration / decode_s,
            vad_speed=recording.duration / vad_s,
        )


def report(result: PrepResult) -> str:
    machine = this_machine()
    lines = [f"{result.audio}, {result.duration_s:.1f} s, on {machine.cpu} ({machine.n_cpus} cores)", ""]
    lines += [f"{'mel of 30 s':30} {'bins':>5} {'ms':>8} {'× choral':>9}"]
    lines += [f"{mel.name:30} {mel.n_mels:>5} {mel.window_ms:>8.2f} {mel.times_choral:>9.2f}" for mel in result.mel]
    lines += ["", f"decoding         {result.decode_speed:>7.0f} × real time"]
    lines += [f"voice detection  {result.vad_speed:>7.0f} × real time", ""]
    return "\n".join(lines)


def _mel_times(window: Samples, n_mels: int, rounds: int) -> list[MelTime]:
    extractors = {"choral": _choral(n_mels)} | _peers(n_mels)
    times_s: dict[str, list[float]] = {name: [] for name in extractors}
    for extract in extractors.values():
        extract(window)  # the first call loads and allocates
    for _ in range(rounds):
        for name, extract in extractors.items():
            times_s[name].append(_seconds(lambda extract=extract: extract(window)))  # type: ignore[misc]
    medians_s = {name: statistics.median(times) for name, times in times_s.items()}
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
        # The public call prefers torch; this is the numpy path.
        peers["transformers (numpy)"] = lambda samples: hugging._np_extract_fbank_features(samples[None], "cpu")
        if _is_installed("torch"):
            peers["transformers (torch)"] = lambda samples: hugging(samples, sampling_rate=SAMPLE_RATE)
    return peers


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _seconds(action: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s


def add_arguments(parser: Parser) -> None:
    parser.add_argument("audio", nargs="?", metavar="AUDIO", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    result = measure(arguments.audio)
    write_stdout(report(result))
    write_stdout(json_line("prep", vars(result)) + "\n")
    return 0


if __name__ == "__main__":
    run_script(__doc__, add_arguments, run, usage="[AUDIO]", has_machine_flags=False)
