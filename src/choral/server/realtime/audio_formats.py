"""The formats that live audio comes in: 16-bit PCM at 24 or 16 kHz, and the two of telephony, G.711, at 8 kHz."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from choral.server.api_errors import ApiError

Encoding = Literal["pcm", "pcmu", "pcma"]
PCM_RATES = (24_000, 16_000)
G711_RATE = 8_000
PCM_BYTES = 2
MULAW_BIAS = 33  # of 14 bits

Int16 = npt.NDArray[np.int16]


@dataclass(frozen=True)
class AudioFormat:
    encoding: Encoding
    rate: int

    def samples(self, data: bytes) -> Int16:
        if self.encoding != "pcm":
            return g711_table(self.encoding)[np.frombuffer(data, np.uint8)]
        if len(data) % PCM_BYTES:
            raise ApiError(
                f"{len(data)} bytes are no whole number of 16-bit samples: send two bytes for each",
                param="audio",
                code="invalid_value",
            )
        return np.frombuffer(data, "<i2").astype(np.int16, copy=False)


PCM_24K = AudioFormat("pcm", 24_000)


@cache
def g711_table(encoding: Encoding) -> Int16:
    """The sample that each byte stands for."""
    codes = np.arange(256)
    return (_mulaw(codes) if encoding == "pcmu" else _alaw(codes)).astype(np.int16)


def _mulaw(codes: npt.NDArray[np.int_]) -> npt.NDArray[np.int_]:
    """A sign, three bits of exponent, four of mantissa, all inverted; 14 bits, put at the top of 16."""
    inverted = codes ^ 0xFF
    exponent, mantissa = inverted >> 4 & 7, inverted & 15
    magnitude = ((2 * mantissa + MULAW_BIAS) << exponent) - MULAW_BIAS
    return np.where(inverted & 0x80, -magnitude, magnitude) * 4


def _alaw(codes: npt.NDArray[np.int_]) -> npt.NDArray[np.int_]:
    """The same with every second bit inverted; 13 bits, put at the top of 16."""
    inverted = codes ^ 0x55
    exponent, mantissa = inverted >> 4 & 7, inverted & 15
    fine, coarse = 2 * mantissa + 1, (2 * mantissa + 33) << np.maximum(exponent - 1, 0)
    magnitude = np.where(exponent == 0, fine, coarse)
    return np.where(inverted & 0x80, magnitude, -magnitude) * 8
