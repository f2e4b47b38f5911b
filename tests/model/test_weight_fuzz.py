"""Fuzzing: opening and reading a damaged file gives a checkpoint or `ModelCorrupt`."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from choral.errors import ModelCorrupt
from choral.model.weights import open_checkpoint
from onnx_files import write_onnx
from small_models import random_tensors, write_ctranslate2, write_ggml, write_hugging_face, write_pt

N_MUTATIONS = 300
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def truncate(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def flip_bits(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 1, 4, 32))):
        data[_place(data, chance)] ^= 1 << chance.randrange(8)


def overwrite(data: bytearray, chance: random.Random) -> None:
    start, size = _place(data, chance), chance.choice((1, 2, 4, 8))
    value = chance.choice(EXTREMES) & (256**size - 1)
    data[start : start + size] = value.to_bytes(size, "little")


def cut_out(data: bytearray, chance: random.Random) -> None:
    start = _place(data, chance)
    del data[start : start + chance.choice((1, 2, 8, 100))]


def repeat(data: bytearray, chance: random.Random) -> None:
    start = _place(data, chance)
    data[start:start] = data[start : start + chance.choice((1, 4, 64, 1000))]


def _place(data: bytearray, chance: random.Random) -> int:
    """A random offset, mostly in headers: at the start, or at the end, where a zip archive has its directory."""
    length = len(data)
    start = chance.choice((0, 0, max(length - 3000, 0), 0))
    return start + chance.randrange(min(chance.choice((100, 3000, length)), length - start))


def write_ggml_blocks(path: Path) -> None:
    write_ggml(path, random_tensors(), block_type=6)


def write_int8(folder: Path) -> None:
    write_ctranslate2(folder, random_tensors(), quantization="int8_float16")


def write_quantized_onnx(folder: Path) -> None:
    write_onnx(folder, random_tensors(), quantized="int8")


def write_shards(folder: Path) -> None:
    write_hugging_face(folder, random_tensors(), n_shards=2)


FORMATS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pt": (lambda path: write_pt(path, random_tensors()), ""),
    "ggml": (lambda path: write_ggml(path, random_tensors(dtype="float16")), ""),
    "ggml blocks": (write_ggml_blocks, ""),
    "safetensors": (lambda path: write_hugging_face(path, random_tensors()), "model.safetensors"),
    "config": (lambda path: write_hugging_face(path, random_tensors()), "config.json"),
    "index": (write_shards, "model.safetensors.index.json"),
    "model.bin": (lambda path: write_ctranslate2(path, random_tensors()), "model.bin"),
    "model.bin int8": (write_int8, "model.bin"),
    "vocabulary": (lambda path: write_ctranslate2(path, random_tensors()), "vocabulary.json"),
    "encoder.onnx": (write_quantized_onnx, "onnx/encoder_model_quantized.onnx"),
    "decoder.onnx": (write_quantized_onnx, "onnx/decoder_model_merged_quantized.onnx"),
    "heads": (lambda path: write_ctranslate2(path, random_tensors()), "config.json"),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    write, file_name = FORMATS[kind]
    model = tmp_path / "model"
    write(model)
    target = model / file_name if file_name else model
    whole = target.read_bytes()
    chance = random.Random(kind)
    outcomes = {"read": 0, "refused": 0}
    open_checkpoint(model)
    tracemalloc.start()
    for index in range(N_MUTATIONS):
        data = bytearray(whole)
        mutation = (truncate, flip_bits, overwrite, cut_out, repeat)[index % 5]
        mutation(data, chance)
        target.unlink()  # the file before may still be mapped
        target.write_bytes(data)
        started_s = time.monotonic()
        outcomes[_outcome(model)] += 1
        assert time.monotonic() - started_s < 5, f"mutation {index}"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * 2**20
    assert outcomes["refused"] > N_MUTATIONS // 10  # the mutations do hit what matters


def _outcome(model: Path) -> str:
    n_items, message = 0, None
    try:
        checkpoint = open_checkpoint(model)
        n_items = sum(tensor.size for tensor in checkpoint.tensors.values())
    except ModelCorrupt as error:
        message = str(error)
    if message is None:
        assert n_items < 100_000
        return "read"
    assert str(model) in message
    assert len(message) < 1000
    assert message.isprintable()
    return "refused"
