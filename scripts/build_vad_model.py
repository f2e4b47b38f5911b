"""Write src/choral/assets/silero_vad_v6_*.onnx: Silero's voice detector, with the same weights, as matrix products.

usage: python scripts/build_vad_model.py SOURCE FOLDER

SOURCE is the network that the package faster-whisper carries in its assets (silero_vad_v6.onnx). There the spectra and
most layers are convolutions, which ONNX Runtime computes frame by frame; here each is a matrix product over all frames
of a call. The recurrent layer, which needs all frames in order, is a network of its own. SOURCE takes frames of 576
samples that overlap; here they are built from the samples. The files are read and written without the package onnx: a
model is a protocol buffer of few fields (onnx.proto).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Weights = dict[str, npt.NDArray[np.float32]]

IR_VERSION, OPSET = 8, 18
FLOAT, INT64 = 1, 7  # TensorProto.DataType

FRAME, CONTEXT, HOP, N_FFT = 512, 64, 128, 256
END = 1 << 30  # of an axis, whatever its length
N_BINS = N_FFT // 2 + 1
N_STEPS = 4  # spectra per frame
STATE = 128

BASIS = "encoder.feature_extractor.forward_basis_buffer"  # [2 × bins, 1, n_fft]: real parts, imaginary parts
LSTM_INPUT, LSTM_STATE, LSTM_BIAS = "onnx::LSTM_209", "onnx::LSTM_210", "onnx::LSTM_211"


def read_weights(model: bytes) -> Weights:
    graph = Message(Message(model).strings[7][0])
    tensors = [Message(tensor) for tensor in graph.strings[5]]
    return {
        tensor.strings[8][0].decode(): np.frombuffer(tensor.strings[9][0], np.float32).reshape(tensor.integers[1])
        for tensor in tensors
        if tensor.integers[2] == [FLOAT]
    }


class Graph:
    """Nodes and constants in the order in which they are added."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: dict[tuple[object, ...], str] = {}
        self._tensors: list[bytes] = []

    def constant(self, array: Array) -> str:
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = name = f"constant_{len(self._constants)}"
            shape = b"".join(field(1, size) for size in array.shape)
            data_type = FLOAT if array.dtype == np.float32 else INT64
            self._tensors.append(shape + field(2, data_type) + field(8, name) + field(9, array.tobytes()))
        return self._constants[key]

    def node(self, op: str, *inputs: str | Array, outputs: tuple[str, ...] = (), **attributes: int | str) -> str:
        """Adds a node and returns the name of its first output."""
        outputs = outputs or (f"{op}_{len(self._nodes)}",)
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        parts = [field(1, name) for name in names] + [field(2, name) for name in outputs] + [field(4, op)]
        self._nodes.append(b"".join(parts) + b"".join(field(5, attribute(*item)) for item in attributes.items()))
        return outputs[0]

    def slice(self, x: str, start: int, stop: int, *, step: int = 1, axis: int = 1) -> str:
        """Columns of a matrix, or rows."""
        return self.node("Slice", x, *(np.array([value], np.int64) for value in (start, stop, axis, step)))

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, np.array(shape, np.int64))

    def dense(self, x: str, weight: Array, bias: Array) -> str:
        return self.node("Relu", self.node("Gemm", x, weight, bias))

    def model(self, inputs: dict[str, list[int | str]], outputs: dict[str, list[int | str]]) -> bytes:
        graph = [field(1, node) for node in self._nodes] + [field(2, "silero_vad")]
        graph += [field(5, tensor) for tensor in self._tensors]
        graph += [field(11, value_info(*item)) for item in inputs.items()]
        graph += [field(12, value_info(*item)) for item in outputs.items()]
        return field(1, IR_VERSION) + field(7, b"".join(graph)) + field(8, field(1, "") + field(2, OPSET))


def build_features(weights: Weights) -> bytes:
    graph = Graph()
    encoder(graph, spectra(graph, weights[BASIS][:, 0]), weights)
    return graph.model({"samples": ["n_frames", FRAME], "context": [1, CONTEXT]}, {"features": ["n_frames", STATE]})


def build_recurrent(weights: Weights) -> bytes:
    graph = Graph()
    decoder(graph, "features", weights)
    state: list[int | str] = [1, 1, STATE]
    return graph.model(
        {"features": ["n_frames", STATE], "h": state, "c": state},
        {"speech_probs": ["n_frames"], "hn": state, "cn": state},
    )


def spectra(graph: Graph, basis: npt.NDArray[np.float32]) -> str:
    """[n, steps × bins]: magnitudes of windows of 256 samples, 128 apart; the last is completed by reflection.

    Real parts are products with cosines and imaginary parts with sines. Around its middle a cosine is even and a sine
    odd, and so are both under the symmetric window: sums and differences of mirrored samples halve the products.
    """
    cosines, sines = (part[:, 1 : HOP + 1].T.copy() for part in (basis[:N_BINS], basis[N_BINS:]))
    mirrored = basis[:, HOP:][:, ::-1].T
    assert np.allclose(np.hstack([cosines, -sines]), mirrored, rtol=0, atol=2e-7), "the basis is not symmetric"
    assert not basis[:, 0].any(), "the window does not start with 0"
    cosines[-1] /= 2  # the middle is its own mirror image: it counts twice in the sums
    left, right = mirrored_halves(graph)
    real = graph.node("MatMul", graph.node("Add", left, right), cosines)
    imaginary = graph.node("MatMul", graph.node("Sub", left, right), sines)
    power = graph.node("Add", graph.node("Mul", real, real), graph.node("Mul", imaginary, imaginary))
    return graph.reshape(graph.node("Sqrt", power), -1, N_STEPS * N_BINS)


def mirrored_halves(graph: Graph) -> tuple[str, str]:
    """[n × steps, 128] twice: samples 1 to 128 of each window, and samples 255 to 128.

    A frame is preceded by the last 64 samples of the one before it, and followed by the mirror image of its own.
    """
    previous = graph.node(
        "Concat", "context", graph.slice(graph.slice("samples", 0, -1, axis=0), -CONTEXT, END), axis=0
    )
    following = graph.slice("samples", FRAME - 2, FRAME - 2 - CONTEXT, step=-1)
    left = graph.node("Concat", graph.slice(previous, 1, END), graph.slice("samples", 0, FRAME - CONTEXT + 1), axis=1)
    right = graph.node("Concat", graph.slice("samples", CONTEXT, END), following, axis=1)
    return graph.reshape(left, -1, HOP), graph.slice(graph.reshape(right, -1, HOP), -1, -END, step=-1)


def encoder(graph: Graph, magnitudes: str, weights: Weights) -> None:
    """`features` [n, 128]: four convolutions over the 4, 4, 2 and 1 steps of a frame, without products with padding."""
    taps, biases = [], []
    for i in range(4):
        weight = weights[f"encoder.conv_layers.{i}.weight"]
        taps.append(weight.transpose(2, 1, 0).reshape(-1, weight.shape[0]))  # [3 × inputs, outputs]
        biases.append(weights[f"encoder.conv_layers.{i}.bias"])
    first = [
        graph.dense(graph.slice(magnitudes, 0, 2 * N_BINS), taps[0][N_BINS:], biases[0]),
        graph.dense(graph.slice(magnitudes, 0, 3 * N_BINS), taps[0], biases[0]),
        graph.dense(graph.slice(magnitudes, N_BINS, 4 * N_BINS), taps[0], biases[0]),
        graph.dense(graph.slice(magnitudes, 2 * N_BINS, 4 * N_BINS), taps[0][: 2 * N_BINS], biases[0]),
    ]
    second = [
        graph.dense(graph.node("Concat", *first[:2], axis=1), taps[1][128:], biases[1]),
        graph.dense(graph.node("Concat", *first[1:], axis=1), taps[1], biases[1]),
    ]
    third = graph.dense(graph.node("Concat", *second, axis=1), taps[2][64:], biases[2])
    graph.node("Relu", graph.node("Gemm", third, taps[3][64:128], biases[3]), outputs=("features",))


def decoder(graph: Graph, features: str, weights: Weights) -> None:
    """The recurrent layer, and the probability of speech from its output."""
    matrices = weights[LSTM_INPUT], weights[LSTM_STATE], weights[LSTM_BIAS]
    sequence = graph.reshape(features, -1, 1, STATE)
    outputs = graph.node("LSTM", sequence, *matrices, "", "h", "c", outputs=("y", "hn", "cn"), hidden_size=STATE)
    hidden = graph.node("Relu", graph.reshape(outputs, -1, STATE))
    weight, bias = weights["decoder.conv1d.weight"][0], weights["decoder.conv1d.bias"]
    logits = graph.reshape(graph.node("Gemm", hidden, weight, bias), -1)
    graph.node("Sigmoid", logits, outputs=("speech_probs",))


def attribute(name: str, value: int | str) -> bytes:
    if isinstance(value, int):
        return field(1, name) + field(3, value) + field(20, 2)
    return field(1, name) + field(4, value) + field(20, 3)


def value_info(name: str, shape: list[int | str]) -> bytes:
    dimensions = b"".join(field(1, field(1 if isinstance(size, int) else 2, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, dimensions)))


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    if value < 128:
        return bytes([value])
    return bytes([value & 127 | 128]) + varint(value >> 7)


class Message:
    """The values of each field, by its number."""

    def __init__(self, data: bytes) -> None:
        self.integers: dict[int, list[int]] = defaultdict(list)
        self.strings: dict[int, list[bytes]] = defaultdict(list)
        stream = BytesIO(data)
        while stream.tell() < len(data):
            number, kind = divmod(read_varint(stream), 8)
            value = read_varint(stream)
            if kind == 2:
                self.strings[number].append(stream.read(value))
            else:
                assert kind == 0, "a network has only integers and strings"
                self.integers[number].append(value)


def read_varint(stream: BytesIO) -> int:
    byte = stream.read(1)[0]
    return byte if byte < 128 else byte - 128 + (read_varint(stream) << 7)


if __name__ == "__main__":
    source, folder = map(Path, sys.argv[1:])
    weights = read_weights(source.read_bytes())
    (folder / "silero_vad_v6_features.onnx").write_bytes(build_features(weights))
    (folder / "silero_vad_v6_recurrent.onnx").write_bytes(build_recurrent(weights))
