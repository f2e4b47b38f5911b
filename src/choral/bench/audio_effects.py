"""What recordings do to speech, and sounds without speech: pure functions of samples and a random generator.

Everything is computed, so that the same seed gives the same samples on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.bench.clips import FULL_SCALE, Samples

SNR_DB = 10.0
FAST_TEMPO = 1.4
TELEPHONE_HZ = (300.0, 3_400.0)
MU = 255.0  # of the telephone's µ-law
REVERBERATION_S = 0.6  # until it is 60 dB weaker
FAR_LEVEL = 0.03  # about -30 dB
ACTIVE_SHARE = 0.1  # of the mean power: a block with less is a pause
BEAT_S = 0.6
CHORDS_HZ = ((220.0, 277.2, 329.6), (174.6, 220.0, 261.6), (196.0, 246.9, 293.7), (164.8, 196.0, 246.9))

Generator = np.random.Generator
Effect = Callable[[Samples, Generator], Samples]


def add_noise(samples: Samples, rng: Generator) -> Samples:
    return mix(samples, room_noise(samples.size, rng))


def add_music(samples: Samples, rng: Generator) -> Samples:
    return mix(samples, music(samples.size, rng))


def telephone(samples: Samples, rng: Generator) -> Samples:
    """8 kHz, 300 to 3,400 Hz, 8-bit µ-law."""
    narrow = band(samples, *TELEPHONE_HZ)[::2]
    companded = np.sign(narrow) * np.log1p(MU * np.abs(narrow).clip(0, 1)) / np.log1p(MU)
    coded = np.rint(companded * 127) / 127
    decoded = np.sign(coded) * np.expm1(np.abs(coded) * np.log1p(MU)) / MU
    doubled = np.zeros(2 * decoded.size)
    doubled[::2] = 2 * decoded
    return band(doubled[: samples.size], 0.0, SAMPLE_RATE / 4)


def far(samples: Samples, rng: Generator) -> Samples:
    """A speaker across a room: more reverberation than direct sound, quiet, with the noise of the room."""
    n = round(REVERBERATION_S * SAMPLE_RATE)
    response = rng.normal(0, 1, n) * 10 ** (-3 * np.arange(n) / n)
    response /= np.sqrt(np.square(response).sum())
    response[0] += 0.7
    size = samples.size + n
    wet = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(response, size), size)[: samples.size]
    wet *= FAR_LEVEL / max(float(np.abs(wet).max()), 1e-9)
    return as_samples(wet + 3e-4 * room_noise(samples.size, rng))


def fast(samples: Samples, rng: Generator) -> Samples:
    """The same voice, `FAST_TEMPO` times faster."""
    return change_tempo(samples, FAST_TEMPO)


def change_tempo(samples: Samples, tempo: float) -> Samples:
    import av

    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=SAMPLE_RATE, format="s16", layout="mono", time_base=Fraction(1, SAMPLE_RATE))
    graph.link_nodes(source, graph.add("atempo", f"{tempo:g}"), graph.add("abuffersink")).configure()
    frame = av.AudioFrame.from_ndarray(np.rint(samples * (FULL_SCALE - 1)).astype(np.int16)[None], "s16", "mono")
    frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, 0, Fraction(1, SAMPLE_RATE)
    graph.push(frame)
    graph.push(None)
    return as_samples(np.concatenate([part.ravel() for part in _pulled(graph)]) / FULL_SCALE)


def _pulled(graph: object) -> Iterable[npt.NDArray[np.int16]]:
    import av

    while True:
        try:
            yield graph.pull().to_ndarray()  # type: ignore[attr-defined]
        except (av.error.EOFError, av.error.BlockingIOError):
            return


def another_voice(samples: Samples, factor: float) -> Samples:
    """Played faster or slower, so that pitch and formants differ too."""
    times = np.arange(0, samples.size - 1, factor)
    return as_samples(np.interp(times, np.arange(samples.size), samples))


def silence(n: int, rng: Generator) -> Samples:
    return np.zeros(n, np.float32)


def near_silence(n: int, rng: Generator) -> Samples:
    """Dither of one 16-bit step."""
    return as_samples(rng.integers(-1, 2, n) / FULL_SCALE)


def room_noise(n: int, rng: Generator) -> Samples:
    """Noise that is stronger at low frequencies, of power 1/400: -26 dB."""
    spectrum = np.fft.rfft(rng.normal(0, 1, n))
    frequencies = np.fft.rfftfreq(n, 1 / SAMPLE_RATE)
    shaped = np.fft.irfft(spectrum / np.sqrt(1 + frequencies / 200), n)
    return as_samples(0.05 * shaped / np.sqrt(np.square(shaped).mean()))


def hum(n: int, rng: Generator) -> Samples:
    """Mains: 50 Hz and its odd harmonics."""
    t = np.arange(n) / SAMPLE_RATE
    tones = sum(np.sin(2 * np.pi * 50 * k * t + rng.uniform(0, 6)) / k for k in (1, 3, 5, 7, 9))
    return as_samples(0.05 * tones + 1e-3 * rng.normal(0, 1, n))


def dial_tone(n: int, rng: Generator) -> Samples:
    """350 and 440 Hz, interrupted every few seconds as a busy line is."""
    t = np.arange(n) / SAMPLE_RATE
    is_on = (t % 8 < 4) | (t % 1 < 0.5)
    return as_samples(0.1 * (np.sin(2 * np.pi * 350 * t) + np.sin(2 * np.pi * 440 * t)) * is_on)


def applause(n: int, rng: Generator) -> Samples:
    """Many short bursts of noise, in waves."""
    claps = np.zeros(n)
    starts = rng.integers(0, n, round(60 * n / SAMPLE_RATE))
    np.add.at(claps, starts, rng.uniform(0.2, 1.0, starts.size))
    decay = np.exp(-np.arange(400) / 80) * rng.normal(0, 1, 400)
    waves = 0.55 + 0.45 * np.sin(2 * np.pi * np.arange(n) / SAMPLE_RATE / 9)
    return as_samples(0.12 * np.convolve(claps, decay)[:n] * waves)


def music(n: int, rng: Generator) -> Samples:
    """A chord with overtones on every beat, each fading like a plucked string."""
    beat = round(BEAT_S * SAMPLE_RATE)
    t = np.arange(beat) / SAMPLE_RATE
    beats = []
    for number in range(-(-n // beat)):
        chord = CHORDS_HZ[number // 4 % len(CHORDS_HZ)]
        octave = rng.choice([0.5, 1.0, 2.0], p=[0.2, 0.6, 0.2])
        strings = sum(
            np.sin(2 * np.pi * hz * octave * k * t) * np.exp(-3 * k * t) / k for hz in chord for k in (1, 2, 3, 4)
        )
        beats.append(0.06 * strings)
    return as_samples(np.concatenate(beats)[:n])


NON_SPEECH: dict[str, Callable[[int, Generator], Samples]] = {
    "silence": silence,
    "near-silence": near_silence,
    "room noise": room_noise,
    "hum": hum,
    "dial tone": dial_tone,
    "applause": applause,
    "music": music,
}


def mix(speech: Samples, other: Samples) -> Samples:
    """Speech and another sound, `SNR_DB` weaker; pauses do not count for the level of speech."""
    gain = speech_level(speech) / max(float(np.sqrt(np.square(other).mean())), 1e-9) * 10 ** (-SNR_DB / 20)
    both = speech + gain * other
    return as_samples(both / max(1.0, float(np.abs(both).max())))


def speech_level(samples: Samples) -> float:
    """The root mean square of speech without its pauses."""
    blocks = samples[: samples.size // 400 * 400].reshape(-1, 400)
    powers = np.square(blocks).mean(axis=1)
    return float(np.sqrt(powers[powers >= ACTIVE_SHARE * powers.mean()].mean()))


def band(samples: npt.NDArray[np.floating], low_hz: float, high_hz: float) -> Samples:
    spectrum = np.fft.rfft(samples)
    frequencies = np.fft.rfftfreq(samples.size, 1 / SAMPLE_RATE)
    spectrum[(frequencies < low_hz) | (frequencies > high_hz)] = 0
    return as_samples(np.fft.irfft(spectrum, samples.size))


def as_samples(values: npt.NDArray[np.floating]) -> Samples:
    return values.astype(np.float32)
