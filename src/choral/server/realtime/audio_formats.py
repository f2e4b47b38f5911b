"""Decoders of the audio formats of a session: 16-bit PCM, and G.711 μ-law and A-law at 8 kHz."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from choral.server.api_errors import ApiError

FormatType = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
G711_RATE = 8_000
PCM_BYTES = 2
MULAW_BIAS = 33  # of 14 bits

Int16 = npt.NDArray[np.int16]


def decode_samples(format_type: FormatType, data: bytes) -> Int16:
    if format_type != "audio/pcm":
        return g711_table(format_type)[np.frombuffer(data, np.uint8)]
    if len(data) % PCM_BYTES:
        raise ApiError(
            f"{len(data)} bytes are not a whole number of 16-bit samples: send two bytes for each sample",
            param="audio",
            code="invalid_value",
        )
    return np.frombuffer(data, "<i2").astype(np.int16, copy=False)


@cache
def g711_table(format_type: FormatType) -> Int16:
    """The sample value of each of the 256 byte values."""
    codes = np.arange(256)
    return (_mulaw(codes) if format_type == "audio/pcmu" else _alaw(codes)).astype(np.int16)


def _mulaw(codes: npt.NDArray[np.int_]) -> npt.NDArray[np.int_]:
    """Decode a sign bit, 3 bits of exponent and 4 of mantissa, all inverted, to 14 bits scaled to 16."""
    inverted = codes ^ 0xFF
    exponent, mantissa = inverted >> 4 & 7, inverted & 15
    magnitude = ((2 * mantissa + MULAW_BIAS) << exponent) - MULAW_BIAS
    return np.where(inverted & 0x80, -magnitude, magnitude) * 4


def _alaw(codes: npt.NDArray[np.int_]) -> npt.NDArray[np.int_]:
    """Decode the same fields with every second bit inverted, to 13 bits scaled to 16."""
    inverted = codes ^ 0x55
    exponent, mantissa = inverted >> 4 & 7, inverted & 15
    fine, coarse = 2 * mantissa + 1, (2 * mantissa + 33) << np.maximum(exponent - 1, 0)
    magnitude = np.where(exponent == 0, fine, coarse)
    return np.where(inverted & 0x80, magnitude, -magnitude) * 8
