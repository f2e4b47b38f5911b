"""Reader of Hugging Face transformers folders: config.json beside weights, in one file or in shards.

The weights are safetensors or, in older folders, torch files; safetensors are preferred where both exist.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from choral.errors import ModelCorrupt
from choral.model import alignment_heads
from choral.model.checkpoint import Checkpoint, LazyTensor, printable, with_audio_positions
from choral.model.dims import ModelDims
from choral.model.weights import vocabulary
from choral.model.weights.mapped_file import corrupt, read_json_object
from choral.model.weights.safetensors import read_safetensors
from choral.model.weights.state_dict import configured_heads, named_tensors
from choral.model.weights.torch_file import read_torch_file

_CONFIG_OF_DIM = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
_READERS: dict[str, Callable[[Path], object]] = {
    "model.safetensors": read_safetensors,
    "pytorch_model.bin": read_torch_file,
}
WEIGHT_FILES = tuple(f"{name}{suffix}" for name in _READERS for suffix in ("", ".index.json"))


def open_hugging_face(folder: Path) -> Checkpoint:
    config = read_json_object(folder / "config.json")
    dims = read_dims(folder / "config.json")
    entries = _tensors(folder, is_tied=config.get("tie_word_embeddings", True) is not False)
    heads = configured_heads(folder / "generation_config.json", dims) or alignment_heads.for_model(dims, folder.name)
    return Checkpoint(dims, with_audio_positions(entries, dims), heads, vocabulary.of_hugging_face(folder), folder)


def read_dims(config_path: Path) -> ModelDims:
    config = read_json_object(config_path)
    _check_architecture(config, config_path)
    try:
        return ModelDims(**{dim: config.get(key) for dim, key in _CONFIG_OF_DIM.items()})  # type: ignore[arg-type]
    except ModelCorrupt as error:
        raise corrupt(config_path, str(error)) from error


def _check_architecture(config: dict[str, Any], path: Path) -> None:
    required = {"model_type": "whisper", "activation_function": "gelu", "scale_embedding": False}
    for key, value in required.items():
        actual = config.get(key, None if key == "model_type" else value)
        if actual != value:
            raise ModelCorrupt(f"{path}: {key} is {printable(str(actual))!r}; in Whisper models it is {value!r}.")


def _tensors(folder: Path, is_tied: bool) -> dict[str, LazyTensor]:
    name = next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if name is None:
        raise ModelCorrupt(f"{folder} has none of {', '.join(WEIGHT_FILES)}: fetch the model again.")
    read = _READERS[name.removesuffix(".index.json")]
    tensors: dict[str, Any] = {}
    for path in _shards(folder / name):
        content = read(path)
        if not isinstance(content, dict):
            raise corrupt(path, "it holds no dictionary of tensors")
        tensors |= content
    entries = named_tensors(tensors, folder / name)
    if not is_tied and "proj_out.weight" in tensors:
        _check_tied(tensors["proj_out.weight"], entries, folder / name)
    return entries


def _shards(path: Path) -> list[Path]:
    if path.suffix != ".json":
        return [path]
    weight_map = read_json_object(path).get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) and _are_strings(weight_map) else set()
    if not names or any(Path(name).name != name for name in names):
        raise corrupt(path, "it does not say which files hold the tensors")
    shards = [path.with_name(name) for name in sorted(names)]
    for shard in shards:
        if not shard.is_file():
            raise corrupt(path, f"the file {printable(shard.name)} that it names is missing")
    return shards


def _are_strings(weight_map: dict[str, Any]) -> bool:
    return all(isinstance(name, str) for name in weight_map.values())


def _check_tied(projection: LazyTensor, entries: dict[str, LazyTensor], path: Path) -> None:
    embedding = entries.get("decoder.token_embedding.weight")
    if embedding is None or not np.array_equal(projection.load(), embedding.load()):
        raise ModelCorrupt(
            f"{path}: its output projection differs from its token embedding; Choral needs them to be equal."
        )
