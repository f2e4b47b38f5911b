"""Speech of which the time of every word is known: flite, a small synthesizer, called as a library.

It needs Debian's package `libflite1`: about 15 times as fast as real time on a core, BSD licence.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.errors import MissingDependency

VOICES = ("cmu_us_slt", "cmu_us_rms", "cmu_us_awb")  # at 16 kHz
FULL_SCALE = 32_768
STARTS, ENDS = (
    b"R:SylStructure.daughter1.daughter1.R:Segment.p.end",
    b"R:SylStructure.daughtern.daughtern.R:Segment.end",
)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {  # result and arguments
    "flite_synth_text": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_void_p]),
    "delete_utterance": (None, [ctypes.c_void_p]),
    "utt_wave": (ctypes.c_void_p, [ctypes.c_void_p]),
    "utt_relation": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "relation_head": (ctypes.c_void_p, [ctypes.c_void_p]),
    "item_next": (ctypes.c_void_p, [ctypes.c_void_p]),
    "ffeature_string": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "ffeature_float": (ctypes.c_float, [ctypes.c_void_p, ctypes.c_char_p]),
}


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


@dataclass(frozen=True)
class SpokenWord:
    text: str  # in lower case
    start: float  # seconds
    end: float


class FliteVoice:
    def __init__(self, name: str) -> None:
        try:
            self._flite = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
            for library in ("cmulex", "usenglish"):
                ctypes.CDLL(f"libflite_{library}.so.1", mode=ctypes.RTLD_GLOBAL)
            register = getattr(ctypes.CDLL(f"libflite_{name}.so.1"), f"register_{name}")
        except OSError as error:
            raise MissingDependency("synthetic speech needs flite: apt-get install libflite1") from error
        for function, (result, arguments) in FUNCTIONS.items():
            getattr(self._flite, function).restype = result
            getattr(self._flite, function).argtypes = arguments
        self._flite.flite_init()
        register.restype, register.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        self._voice = register(None)

    def speak(self, text: str) -> tuple[npt.NDArray[np.float32], list[SpokenWord]]:
        """Samples at 16 kHz, and the words as flite reads them: numbers are written out."""
        flite = self._flite
        utterance = flite.flite_synth_text(text.encode("ascii", "ignore"), self._voice)
        try:
            wave = ctypes.cast(flite.utt_wave(utterance), ctypes.POINTER(_Wave)).contents
            assert wave.sample_rate == SAMPLE_RATE
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).astype(np.float32) / np.float32(
                FULL_SCALE
            )
            words = []
            item = flite.relation_head(flite.utt_relation(utterance, b"Word"))
            while item:
                name = flite.ffeature_string(item, b"name").decode()
                words.append(SpokenWord(name, flite.ffeature_float(item, STARTS), flite.ffeature_float(item, ENDS)))
                item = flite.item_next(item)
            return samples, words
        finally:
            flite.delete_utterance(utterance)
