"""The two networks of diarization in ONNX Runtime: pyannote's segmentation and WeSpeaker's embedding.

The embedding network ends in statistics over all frames of its input. What is wanted are statistics over the frames of
one speaker, so the network is stopped before them: the layer's output and the weights of what follows are added to the
graph's outputs. A protocol buffer that is appended to another is merged with it, so a few bytes after the file do that.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from choral.common.onnx_session import onnx_session
from choral.errors import ModelCorrupt
from choral.model.store import ModelStore
from choral.speakers.fbank import N_MELS
from choral.storage import storage_errors

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Float32 = npt.NDArray[np.float32]

MODEL_NAME = "speakers"
SEGMENTATION_FILE = "pyannote-segmentation-3.0.onnx"
EMBEDDING_FILE = "wespeaker-resnet34-256.onnx"
FRAME_OUTPUT = "onnx::ReduceMean_343"  # [1, channels, bins, frames]: the last convolution's
HEAD = ("model.seg_1.weight", "model.seg_1.bias", "mean_vec")  # a linear layer; the mean of many embeddings
FRAME_SIZE = 2560  # channels × bins
MIN_VARIANCE = np.float32(1e-7)  # of the network's own statistics

_GRAPH, _OUTPUT, _NAME = 7, 12, 1  # fields of ModelProto, GraphProto and ValueInfoProto


class SpeakerNetworks:
    """Calls use one core and release the GIL; any thread may make them."""

    def __init__(self, folder: Path) -> None:
        with storage_errors(folder):
            segmentation = (folder / SEGMENTATION_FILE).read_bytes()
            embedding = (folder / EMBEDDING_FILE).read_bytes()
        self._segmentation = _session(segmentation, folder / SEGMENTATION_FILE)
        self._embedding = _session(with_outputs(embedding, (FRAME_OUTPUT, *HEAD)), folder / EMBEDDING_FILE)
        # More calls at once than cores would not be faster, and each takes about 60 MB.
        self._cores = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))
        shortest = np.zeros((1, 8, N_MELS), np.float32)
        self._weight, self._bias, self._mean = self._embedding.run(list(HEAD), {"feats": shortest})

    def segment(self, samples: Float32) -> Float32:
        """[frames, 7]: log-probabilities of the powerset of three speakers, of one window."""
        with self._cores:
            logits: Float32 = self._segmentation.run(None, {"input_values": samples[None, None]})[0][0]
        return logits

    def speaker_frames(self, features: Float32) -> Float32:
        """[frames, 2560] from [8 × frames, 80]: what the statistics of a speaker are taken of."""
        with self._cores:
            output: Float32 = self._embedding.run([FRAME_OUTPUT], {"feats": features[None]})[0][0]
        return output.reshape(-1, output.shape[-1]).T

    def embed(self, frames: Float32, weights: Float32) -> Float32:
        """The embedding, of unit length, of frames that belong to a speaker with these weights (0 to 1)."""
        total = weights.sum()
        # einsum uses no BLAS, whose threads would spin on products as small as these.
        mean = np.einsum("f,fd->d", weights, frames) / total
        spread = np.einsum("f,fd->d", weights, np.square(frames - mean))
        variance = spread / np.maximum(total - np.square(weights).sum() / total, 1e-3)
        statistics = np.concatenate([mean, np.sqrt(variance + MIN_VARIANCE)])
        embedding = np.einsum("ij,j->i", self._weight, statistics) + self._bias - self._mean
        unit: Float32 = embedding / np.linalg.norm(embedding)
        return unit


@cache
def load_networks() -> SpeakerNetworks:
    """Loaded once in a process; the first time on a machine, downloaded."""
    return SpeakerNetworks(ModelStore().resolve(MODEL_NAME))


def with_outputs(model: bytes, names: tuple[str, ...]) -> bytes:
    """An ONNX model whose graph also returns these of its tensors."""
    outputs = b"".join(_message(_OUTPUT, _message(_NAME, name.encode())) for name in names)
    return model + _message(_GRAPH, outputs)


def _message(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer: its tag, the length in groups of seven bits, and the content."""
    length, groups = len(content), []
    while length > 127:
        groups.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *groups, length]) + content


def _session(model: bytes, path: Path) -> InferenceSession:
    try:
        return onnx_session(model)
    except Exception as error:  # ONNX Runtime's own errors have no common public class
        raise ModelCorrupt(f"{path} cannot be loaded: {error}") from error
