"""Opens a Whisper model on disk as a `Checkpoint`, without torch; the format is detected by content, not by name.

Supported are OpenAI `.pt` files, Hugging Face folders (torch, safetensors or ONNX), CTranslate2 folders and whisper.cpp
ggml files. Damage becomes a `ModelError`; nothing in a file is ever executed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from choral.errors import ModelCorrupt, ModelError, ModelNotFound
from choral.model.checkpoint import Checkpoint
from choral.model.weights.ctranslate2_folder import open_ctranslate2
from choral.model.weights.ggml import MAGIC as GGML_MAGIC
from choral.model.weights.ggml import open_ggml
from choral.model.weights.hugging_face import WEIGHT_FILES, open_hugging_face
from choral.model.weights.mapped_file import corrupt
from choral.model.weights.onnx_folder import find_onnx, open_onnx
from choral.model.weights.torch_file import open_openai_pt

__all__ = ["open_checkpoint"]

_ZIP_MAGIC = b"PK\x03\x04"
_IN_FOLDERS = ("config.json", "model.bin", *WEIGHT_FILES)
_NOT_WEIGHTS = {
    b"version https://git-lfs": "a Git LFS pointer instead of the weights: run `git lfs pull` there",
    b"GGUF": "a GGUF file; whisper.cpp's models are ggml files: fetch the one that ends in .bin",
    b"<!DOCTYPE": "a web page instead of the weights: fetch the model again",
    b"<html": "a web page instead of the weights: fetch the model again",
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19": "in torch's format from before 1.6: save it again with a newer torch",
}


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in this file or folder, with names and shapes validated; its tensors are read on access."""
    checkpoint = _open_folder(path) if os.path.isdir(path) else _open_file(path)
    checkpoint.validate()
    return checkpoint


def _open_folder(folder: Path) -> Checkpoint:
    has_weights = any(_has(folder, name) for name in WEIGHT_FILES)
    if has_weights and _has(folder, "config.json"):
        return open_hugging_face(folder)
    if _has(folder, "model.bin"):
        return open_ctranslate2(folder)
    onnx = find_onnx(folder) if _has(folder, "config.json") else None
    if onnx is not None:
        return open_onnx(folder, *onnx)
    raise ModelNotFound(
        f"{folder} has neither config.json with one of {', '.join(WEIGHT_FILES)} (Hugging Face), "
        "nor config.json with encoder_model.onnx and decoder_model_merged.onnx (ONNX), "
        "nor model.bin (CTranslate2). For an OpenAI .pt or a ggml .bin model, give the file itself."
    )


def _has(folder: Path, name: str) -> bool:
    try:
        return stat.S_ISREG((folder / name).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        text = f"the model folder {folder} cannot be opened: {error.strerror or error}. Check its permissions"
        raise ModelError(text) from error


def _open_file(path: Path) -> Checkpoint:
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError as error:
        raise ModelNotFound(f"there is no model at {path}") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    if start.startswith(_ZIP_MAGIC):
        return open_openai_pt(path)
    if start.startswith(GGML_MAGIC):
        return open_ggml(path)
    for magic, what in _NOT_WEIGHTS.items():
        if start.startswith(magic):
            raise ModelCorrupt(f"{path} is {what}.")
    if path.suffix == ".onnx":
        return _open_folder(path.parent.parent if path.parent.name == "onnx" else path.parent)
    if path.name in _IN_FOLDERS:
        return _open_folder(path.parent)
    raise corrupt(path, "it begins neither as a torch .pt file nor as a ggml .bin file")
