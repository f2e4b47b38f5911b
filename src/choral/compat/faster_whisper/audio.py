"""`decode_audio`: any file as 16 kHz samples."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.errors import UsageError

Float32 = npt.NDArray[np.float32]


def decode_audio(
    input_file: str | BinaryIO, sampling_rate: int = SAMPLE_RATE, split_stereo: bool = False
) -> Float32 | tuple[Float32, Float32]:
    """Samples from -1 to 1; with `split_stereo`, those of the left and of the right channel."""
    if sampling_rate != SAMPLE_RATE:
        raise UsageError(f"sampling_rate is {sampling_rate}; Choral decodes to {SAMPLE_RATE} Hz only, as Whisper needs")
    with Recording.open(input_file, channels="split" if split_stereo else "mix") as recording:
        samples = np.array(recording.read(0, recording.n_samples), dtype=np.float32)
    if not split_stereo:
        return samples
    channels = samples.reshape(len(samples), -1)
    if channels.shape[1] > 2:
        raise UsageError(f"the audio has {channels.shape[1]} channels; split_stereo needs a stereo recording")
    return np.ascontiguousarray(channels[:, 0]), np.ascontiguousarray(channels[:, -1])
