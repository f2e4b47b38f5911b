"""State dicts of any origin: OpenAI's parameter names for Hugging Face's, dims from shapes, alignment heads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from choral.errors import ModelCorrupt
from choral.model import alignment_heads
from choral.model.checkpoint import AUDIO_POSITIONS, LazyTensor, printable
from choral.model.dims import ModelDims
from choral.model.weights.mapped_file import corrupt, read_json_object

_HEAD_DIM = 64  # of every Whisper model so far
_DEFAULT_AUDIO_CTX = 1_500
_OUTPUT_PROJECTION = "proj_out.weight"  # Hugging Face stores the token embedding again under this name

_PREFIX = re.compile(r"^(?:model\.)*(?=encoder\.|decoder\.)")
_OPENAI_OF_HUGGING_FACE = [
    (re.compile(rf"(?<=coder\.){hugging_face}(?=\.)"), openai)
    for hugging_face, openai in (
        (r"layers\.(\d+)\.self_attn\.q_proj", r"blocks.\1.attn.query"),
        (r"layers\.(\d+)\.self_attn\.k_proj", r"blocks.\1.attn.key"),
        (r"layers\.(\d+)\.self_attn\.v_proj", r"blocks.\1.attn.value"),
        (r"layers\.(\d+)\.self_attn\.out_proj", r"blocks.\1.attn.out"),
        (r"layers\.(\d+)\.self_attn_layer_norm", r"blocks.\1.attn_ln"),
        (r"layers\.(\d+)\.encoder_attn\.q_proj", r"blocks.\1.cross_attn.query"),
        (r"layers\.(\d+)\.encoder_attn\.k_proj", r"blocks.\1.cross_attn.key"),
        (r"layers\.(\d+)\.encoder_attn\.v_proj", r"blocks.\1.cross_attn.value"),
        (r"layers\.(\d+)\.encoder_attn\.out_proj", r"blocks.\1.cross_attn.out"),
        (r"layers\.(\d+)\.encoder_attn_layer_norm", r"blocks.\1.cross_attn_ln"),
        (r"layers\.(\d+)\.fc1", r"blocks.\1.mlp.0"),
        (r"layers\.(\d+)\.fc2", r"blocks.\1.mlp.2"),
        (r"layers\.(\d+)\.final_layer_norm", r"blocks.\1.mlp_ln"),
        (r"embed_tokens", "token_embedding"),
    )
]
_OPENAI_OF_WHOLE_NAME = {
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "encoder.layer_norm.weight": "encoder.ln_post.weight",
    "encoder.layer_norm.bias": "encoder.ln_post.bias",
    "decoder.layer_norm.weight": "decoder.ln.weight",
    "decoder.layer_norm.bias": "decoder.ln.bias",
}


def named_tensors(state: object, path: Path) -> dict[str, LazyTensor]:
    """The tensors of a state dict under OpenAI's names."""
    if not isinstance(state, dict):
        raise corrupt(path, "it holds no dictionary of tensors")
    entries = {}
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, LazyTensor):
            raise corrupt(path, f"{printable(str(name))} in it is not a tensor")
        if name != _OUTPUT_PROJECTION:
            entries[openai_name(name)] = tensor
    return entries


def openai_name(name: str) -> str:
    """OpenAI's name of a parameter; unknown names and OpenAI's own stay as they are."""
    name = _PREFIX.sub("", name)
    if name in _OPENAI_OF_WHOLE_NAME:
        return _OPENAI_OF_WHOLE_NAME[name]
    for pattern, replacement in _OPENAI_OF_HUGGING_FACE:
        name, n_replaced = pattern.subn(replacement, name, count=1)
        if n_replaced:
            break
    return name


def dims_from_shapes(
    entries: Mapping[str, LazyTensor], n_audio_head: int | None = None, n_text_head: int | None = None
) -> ModelDims:
    """The dims of a model whose file does not store them; without head counts, Whisper's head width is assumed."""
    conv = _shape(entries, "encoder.conv1.weight", 3)
    tokens = _shape(entries, "decoder.token_embedding.weight", 2)
    positions = _shape(entries, "decoder.positional_embedding", 2)
    has_audio_positions = AUDIO_POSITIONS in entries
    return ModelDims(
        n_mels=conv[1],
        n_audio_ctx=_shape(entries, AUDIO_POSITIONS, 2)[0] if has_audio_positions else _DEFAULT_AUDIO_CTX,
        n_audio_state=conv[0],
        n_audio_head=n_audio_head or max(conv[0] // _HEAD_DIM, 1),
        n_audio_layer=_n_layers(entries, "encoder"),
        n_vocab=tokens[0],
        n_text_ctx=positions[0],
        n_text_state=tokens[1],
        n_text_head=n_text_head or max(tokens[1] // _HEAD_DIM, 1),
        n_text_layer=_n_layers(entries, "decoder"),
    )


def _shape(entries: Mapping[str, LazyTensor], name: str, n_axes: int) -> tuple[int, ...]:
    if name not in entries:
        raise ModelCorrupt(f"the tensor {name} is missing")
    shape = entries[name].shape
    if len(shape) != n_axes:
        raise ModelCorrupt(f"the tensor {name} has {len(shape)} axes; it must have {n_axes}")
    return shape


def _n_layers(entries: Mapping[str, LazyTensor], part: str) -> int:
    """The number of consecutive layers; tensors behind a gap fail validation as unexpected."""
    n_layers = 0
    while f"{part}.blocks.{n_layers}.attn_ln.weight" in entries:
        n_layers += 1
    return n_layers


def configured_heads(path: Path, dims: ModelDims) -> alignment_heads.Heads | None:
    """The alignment heads that a JSON configuration file lists, where it exists and its list fits the dims."""
    return alignment_heads.checked(read_json_object(path).get("alignment_heads"), dims) if path.is_file() else None
