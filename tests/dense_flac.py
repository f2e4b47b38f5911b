"""A file of some kilobytes that declares any rate, number of channels and length."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np


def flac_of_silence(rate: int, layout: str, seconds: float) -> bytes:
    """Compressed to almost nothing, whatever its rate and channels."""
    n_channels = len(av.AudioLayout(layout).channels)
    silence = np.zeros((1, 32_768 * n_channels), np.int16)
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as output:
        stream: Any = output.add_stream("flac", rate=rate, layout=layout)
        for start in range(0, round(rate * seconds), 32_768):
            frame = av.AudioFrame.from_ndarray(silence, format="s16", layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()
