"""Whisper models of a few kilobytes with random weights, written in every format by the format's own library where
there is one, and by hand otherwise."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch

from choral.model.checkpoint import Checkpoint, expected_shapes
from choral.model.dims import ModelDims
from choral.model.weights.to_ctranslate2 import convert

SMALL = ModelDims(
    n_mels=4, n_audio_ctx=6, n_audio_state=32, n_audio_head=2, n_audio_layer=2,
    n_vocab=12, n_text_ctx=5, n_text_state=32, n_text_head=4, n_text_layer=1,
)  # fmt: skip
VOCABULARY = ("!", '"', "#", "Ġthe", "Ċ", "âĻª", "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "a", "b", "c")
VOCABULARY_BYTES = (b"!", b'"', b"#", b" the", b"\n", "♪".encode(), *(name.encode() for name in VOCABULARY[6:]))

Tensors = dict[str, np.ndarray[Any, Any]]
SHAPES = {
    "large-v3's bins and vocabulary": ModelDims(128, 1500, 64, 2, 2, 51866, 448, 64, 2, 2),
    "distilled: two decoder layers": ModelDims(80, 1500, 128, 2, 4, 51865, 448, 128, 2, 2),
    "turbo's proportions": ModelDims(128, 1500, 64, 1, 8, 51866, 448, 64, 1, 1),
    "English only, three heads": ModelDims(80, 1500, 96, 3, 1, 51864, 448, 96, 3, 3),
    "a padded vocabulary": ModelDims(80, 1500, 64, 2, 1, 51968, 448, 64, 2, 1),
}


def random_tensors(dims: ModelDims = SMALL, dtype: str = "float32") -> Tensors:
    random = np.random.default_rng(7)
    return {name: random.standard_normal(shape).astype(dtype) for name, shape in expected_shapes(dims).items()}


def as_bfloat16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same numbers cut to the 16 upper bits of float32."""
    return (array.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def write_pt(path: Path, tensors: Tensors, dims: ModelDims | None = SMALL) -> None:
    state = OrderedDict((name, torch.from_numpy(array)) for name, array in tensors.items())
    torch.save(state if dims is None else {"dims": dataclasses.asdict(dims), "model_state_dict": state}, path)


_HUGGING_FACE_NAMES = (
    ("cross_attn.query", "encoder_attn.q_proj"), ("cross_attn.key", "encoder_attn.k_proj"),
    ("cross_attn.value", "encoder_attn.v_proj"), ("cross_attn.out", "encoder_attn.out_proj"),
    ("cross_attn_ln", "encoder_attn_layer_norm"), (".attn.query", ".self_attn.q_proj"),
    (".attn.key", ".self_attn.k_proj"), (".attn.value", ".self_attn.v_proj"), (".attn.out", ".self_attn.out_proj"),
    (".attn_ln", ".self_attn_layer_norm"), ("mlp.0", "fc1"), ("mlp.2", "fc2"), ("mlp_ln", "final_layer_norm"),
    ("blocks", "layers"), ("token_embedding", "embed_tokens"), ("positional_embedding", "embed_positions.weight"),
    ("ln_post", "layer_norm"), ("decoder.ln", "decoder.layer_norm"),
)  # fmt: skip


def hugging_face_name(name: str) -> str:
    for openai, hugging_face in _HUGGING_FACE_NAMES:
        name = name.replace(openai, hugging_face)
    return f"model.{name}"


def write_hugging_face(
    folder: Path, tensors: Tensors, dims: ModelDims = SMALL, *, bfloat16: bool = False, n_shards: int = 1
) -> None:
    folder.mkdir(exist_ok=True)
    write_config(folder, dims)
    named = [(hugging_face_name(name), array) for name, array in tensors.items()]
    if n_shards == 1:
        write_safetensors(folder / "model.safetensors", dict(named), bfloat16)
        return
    weight_map = {}
    for shard in range(n_shards):
        name = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors"
        write_safetensors(folder / name, dict(named[shard::n_shards]), bfloat16)
        weight_map |= {tensor: name for tensor, _ in named[shard::n_shards]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_config(folder: Path, dims: ModelDims) -> None:
    config = {
        "model_type": "whisper", "activation_function": "gelu", "d_model": dims.n_audio_state,
        "num_mel_bins": dims.n_mels, "max_source_positions": dims.n_audio_ctx,
        "encoder_attention_heads": dims.n_audio_head, "encoder_layers": dims.n_audio_layer,
        "vocab_size": dims.n_vocab, "max_target_positions": dims.n_text_ctx,
        "decoder_attention_heads": dims.n_text_head, "decoder_layers": dims.n_text_layer,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def write_safetensors(path: Path, tensors: Tensors, bfloat16: bool = False) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs = []
    position = 0
    for name, array in tensors.items():
        if bfloat16:
            data = (array.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            data = array.tobytes()
        dtype = "BF16" if bfloat16 else {"float32": "F32", "float16": "F16"}[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (position, position + len(data))}
        blobs.append(data)
        position += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_ctranslate2(folder: Path, tensors: Tensors, dims: ModelDims = SMALL, quantization: str | None = None) -> None:
    folder.mkdir(exist_ok=True)
    spec = ctranslate2.specs.WhisperSpec(dims.n_audio_layer, dims.n_audio_head, dims.n_text_layer, dims.n_text_head)
    spec.decoder.position_encodings.encodings = tensors["decoder.positional_embedding"].copy()
    spec.encoder.position_encodings.encodings = tensors["encoder.positional_embedding"].copy()
    spec.decoder.embeddings.weight = tensors["decoder.token_embedding.weight"].copy()
    spec.decoder.projection.weight = tensors["decoder.token_embedding.weight"].copy()
    for conv in ("conv1", "conv2"):
        _set_linear(getattr(spec.encoder, conv), tensors, f"encoder.{conv}")
    _set_norm(spec.encoder.layer_norm, tensors, "encoder.ln_post")
    _set_norm(spec.decoder.layer_norm, tensors, "decoder.ln")
    for part in ("encoder", "decoder"):
        for index, layer in enumerate(getattr(spec, part).layer):
            _set_block(layer, tensors, f"{part}.blocks.{index}")
    spec.config.alignment_heads = [[0, 1], [0, 3]]
    spec.register_vocabulary(list(VOCABULARY))
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def _set_block(layer: Any, tensors: Tensors, block: str) -> None:
    _set_norm(layer.self_attention.layer_norm, tensors, f"{block}.attn_ln")
    _set_linear(
        layer.self_attention.linear[0], tensors, *(f"{block}.attn.{part}" for part in ("query", "key", "value"))
    )
    _set_linear(layer.self_attention.linear[1], tensors, f"{block}.attn.out")
    if block.startswith("decoder"):
        _set_norm(layer.attention.layer_norm, tensors, f"{block}.cross_attn_ln")
        _set_linear(layer.attention.linear[0], tensors, f"{block}.cross_attn.query")
        _set_linear(layer.attention.linear[1], tensors, f"{block}.cross_attn.key", f"{block}.cross_attn.value")
        _set_linear(layer.attention.linear[2], tensors, f"{block}.cross_attn.out")
    _set_norm(layer.ffn.layer_norm, tensors, f"{block}.mlp_ln")
    _set_linear(layer.ffn.linear_0, tensors, f"{block}.mlp.0")
    _set_linear(layer.ffn.linear_1, tensors, f"{block}.mlp.2")


def _set_norm(spec: Any, tensors: Tensors, name: str) -> None:
    spec.gamma, spec.beta = tensors[f"{name}.weight"].copy(), tensors[f"{name}.bias"].copy()


def _set_linear(spec: Any, tensors: Tensors, *names: str) -> None:
    spec.weight = np.concatenate([tensors[f"{name}.weight"] for name in names])
    no_bias = np.zeros_like(tensors[f"{names[0]}.weight"][:, 0])
    spec.bias = np.concatenate([tensors.get(f"{name}.bias", no_bias) for name in names])


def write_ggml(path: Path, tensors: Tensors, dims: ModelDims = SMALL, block_type: int | None = None) -> None:
    """With a block type, every matrix is made of random blocks of that type instead of its own numbers."""
    header = (
        dims.n_vocab, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer,
        dims.n_text_ctx, dims.n_text_state, dims.n_text_head, dims.n_text_layer, dims.n_mels, 1,
    )  # fmt: skip
    parts = [struct.pack("<I11i", 0x67676D6C, *header), struct.pack("<2i", 4, 3), bytes(48), struct.pack("<i", 6)]
    parts += [struct.pack("<I", len(token)) + token for token in VOCABULARY_BYTES[:6]]
    for name, array in tensors.items():
        shape = (*array.shape, 1) if "conv" in name and name.endswith("bias") else array.shape
        type_id, data = (0 if array.dtype == np.float32 else 1), array.tobytes()
        if block_type is not None and array.ndim == 2:
            type_id, data = block_type, random_blocks(array.size // 32, block_type)
        parts.append(struct.pack("<3i", len(shape), len(name), type_id))
        parts.append(struct.pack(f"<{len(shape)}i", *shape[::-1]) + name.encode() + data)
    path.write_bytes(b"".join(parts))


BLOCK_BYTES = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34}


def random_blocks(count: int, block_type: int) -> bytes:
    """Quantised blocks with arbitrary content and scales of ordinary size."""
    blocks = np.random.default_rng(3).integers(0, 256, (count, BLOCK_BYTES[block_type]), dtype=np.uint8)
    blocks[:, 0:2] = np.array([0.125], dtype="<f2").view(np.uint8)
    if block_type in (3, 7):
        blocks[:, 2:4] = np.array([-1.5], dtype="<f2").view(np.uint8)
    return blocks.tobytes()


def convert_to(folder: Path, checkpoint: Checkpoint) -> Path:
    folder.mkdir()
    convert(checkpoint, folder)
    return folder
