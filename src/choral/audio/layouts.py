"""Channel layouts that PyAV can hold.

A layout in an order of its own (right before left, say) points to memory that PyAV frees twice, which ends the
process. So a stream's layout is replaced by a plain one before anything is decoded, and a decoder that makes
such a layout itself is refused. Planes are read here one by one too: PyAV's own list of them runs past its end
from eight channels on.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.plane import AudioPlane
from av.audio.stream import AudioStream

from choral.errors import NotAudio

# ffmpeg's own order: layouts that keep it need no memory.
_ORDER = (
    *("FL", "FR", "FC", "LFE", "BL", "BR", "FLC", "FRC", "BC", "SL", "SR", "TC"),
    *("TFL", "TFC", "TFR", "TBL", "TBC", "TBR", "DL", "DR", "WL", "WR", "SDL", "SDR", "LFE2"),
    *("TSL", "TSR", "BFC", "BFL", "BFR", "SSL", "SSR", "TTL", "TTR", "BIL", "BIR"),
)
_SAMPLE_TYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "flt": "f4", "dbl": "f8"}


def settle_layout(stream: AudioStream) -> None:
    """Gives the decoder a layout that is only a name or a count. To be called before it decodes."""
    context = stream.codec_context
    layout = context.layout  # shares its memory with the decoder until that gets another one
    if layout.nb_channels:
        context.layout = f"{layout.nb_channels} channels" if "channels (" in layout.name else layout.name


def require_settled(frames: list[AudioFrame]) -> None:
    for frame in frames:
        if not is_settled(frame.layout.name):
            _keep_forever(frames)
            raise NotAudio(
                f"its channels stand in an order that cannot be read ({frame.layout.name}); "
                "convert it to mono or stereo"
            )


@lru_cache(maxsize=64)
def is_settled(layout_name: str) -> bool:
    """Whether the channels that the name may list, "3 channels (FL+FR+BC)", stand in ffmpeg's own order."""
    _, has_list, channels = layout_name.partition("channels (")
    ranks = [_ORDER.index(name) if name in _ORDER else -1 for name in channels.rstrip(")").split("+")]
    return not has_list or (-1 not in ranks and ranks == sorted(set(ranks)))


def _keep_forever(frames: list[AudioFrame]) -> None:
    """One reference too many: a small leak, where freeing would end the process."""
    for frame in frames:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(frame))


def channels_of(frame: AudioFrame) -> npt.NDArray[Any]:
    """The samples as [channels, samples]."""
    kind, n_channels = frame.format.name.removesuffix("p"), frame.layout.nb_channels
    if kind not in _SAMPLE_TYPES:
        raise NotAudio(f"{n_channels} channels of {kind} samples cannot be mixed; convert it to mono or stereo")
    if frame.format.is_planar:
        return np.stack([_plane(frame, i, kind, frame.samples) for i in range(n_channels)])
    return _plane(frame, 0, kind, frame.samples * n_channels).reshape(-1, n_channels).T


def _plane(frame: AudioFrame, index: int, kind: str, count: int) -> npt.NDArray[Any]:
    plane: Any = AudioPlane(frame, index)
    return np.frombuffer(plane, _SAMPLE_TYPES[kind], count=count)
