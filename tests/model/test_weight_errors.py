"""Error messages for invalid weight files."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from choral.errors import ModelCorrupt, ModelNotFound
from choral.model.weights import open_checkpoint
from onnx_files import message, write_onnx
from small_models import (
    SMALL,
    random_tensors,
    write_hugging_face,
    write_pt,
)


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no model at"):
        open_checkpoint(tmp_path / "nothing.pt")


def test_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("no model")
    with pytest.raises(ModelNotFound, match=r"has neither config.json .* nor model.bin"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it begins neither"),
        (b"hello", "it begins neither"),
        (b"GGUF\3\0\0\0", "a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html>", "a web page"),
        (b"PK\3\4", "not a whole zip archive"),
        (b"lmgg", "ends beyond the end"),
    ],
)
def test_files_that_are_not_models(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(ModelCorrupt, match=message) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)


def test_missing_wrong_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "small.pt"
    name = "decoder.blocks.0.cross_attn.value.bias"
    without = random_tensors()
    del without[name]
    write_pt(path, without)
    with pytest.raises(ModelCorrupt, match=f"{name} is missing"):
        open_checkpoint(path)
    write_pt(path, random_tensors() | {name: np.zeros(33, np.float32)})
    with pytest.raises(ModelCorrupt, match=rf"{name} has the shape \(33,\)"):
        open_checkpoint(path)
    write_pt(path, random_tensors() | {"decoder.blocks.0.attn.query.lora_A": np.zeros(33, np.float32)})
    with pytest.raises(ModelCorrupt, match="lora_A is not part of Whisper"):
        open_checkpoint(path)


@pytest.mark.parametrize("value", [0, -1, 10**12, 2.5, None, "80", True])
def test_invalid_dims(tmp_path: Path, value: object) -> None:
    path = tmp_path / "small.pt"
    content = {"dims": vars(SMALL) | {"n_audio_ctx": value}, "model_state_dict": {}}
    torch.save(content, path)
    with pytest.raises(ModelCorrupt, match="n_audio_ctx"):
        open_checkpoint(path)


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return (Path.write_text, (str(tmp_path / "it_ran"), "x"))

    class Shell:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            import os

            return (os.system, (f"touch {tmp_path / 'it_ran'}",))

    for payload in (Payload(), Shell()):
        torch.save({"dims": vars(SMALL), "model_state_dict": payload}, tmp_path / "evil.pt")
        with pytest.raises(ModelCorrupt, match="Choral runs no code from files"):
            open_checkpoint(tmp_path / "evil.pt")
        assert not (tmp_path / "it_ran").exists()


def test_stride_of_zero_cannot_inflate_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "small.pt"
    huge = torch.zeros(1).expand(2**40, 2**6)
    torch.save({"dims": vars(SMALL), "model_state_dict": {"decoder.ln.weight": huge}}, path)
    with pytest.raises(ModelCorrupt, match="larger than the data stored"):
        open_checkpoint(path)


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    write_pt(tmp_path / "small.pt", random_tensors())
    with (
        zipfile.ZipFile(tmp_path / "small.pt") as plain,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(ModelCorrupt, match="compressed"):
        open_checkpoint(tmp_path / "packed.pt")


def test_shards_cannot_leave_the_folder(tmp_path: Path) -> None:
    write_hugging_face(tmp_path / "model", random_tensors())
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"weight_map": {"model.encoder.conv1.weight": "../outside.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelCorrupt, match="does not say which files"):
        open_checkpoint(tmp_path / "model")


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write_hugging_face(tmp_path, random_tensors(), n_shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelCorrupt, match="model-00002-of-00002"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model_type": "bart"}, "model_type is 'bart'"),
        ({"activation_function": "relu"}, "activation_function"),
        ({"vocab_size": 13}, "token_embedding.weight has the shape"),
        ({"d_model": 33}, "do not divide"),
        ({"encoder_layers": None}, "n_audio_layer is a NoneType"),
    ],
)
def test_hugging_face_config(tmp_path: Path, setting: dict[str, object], message: str) -> None:
    write_hugging_face(tmp_path, random_tensors())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | setting))
    with pytest.raises(ModelCorrupt, match=message):
        open_checkpoint(tmp_path)


def test_file_inside_a_model_folder_opens_the_folder(tmp_path: Path) -> None:
    write_hugging_face(tmp_path, random_tensors())
    assert open_checkpoint(tmp_path / "model.safetensors").path == tmp_path


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([(8, b"x_quantized"), (1, 2), (2, 3), (9, b"ab")], "not quantised with one scale"),
        ([(8, b"x"), (1, 3), (2, 1), (9, b"ab")], "has not the size that it says"),
        ([(8, b"x"), (1, 3), (2, 1), (13, b"ab")], "its weights are in another file"),
    ],
)
def test_onnx_files_that_are_not_read(tmp_path: Path, fields: list[tuple[int, int | bytes]], error: str) -> None:
    write_onnx(tmp_path / "model", random_tensors())
    path = tmp_path / "model/onnx/encoder_model.onnx"
    path.write_bytes(path.read_bytes() + message((7, message((5, message(*fields))))))
    with pytest.raises(ModelCorrupt, match=error) as caught:
        open_checkpoint(tmp_path / "model")
    assert str(path) in str(caught.value)


def test_onnx_without_a_decoder(tmp_path: Path) -> None:
    write_onnx(tmp_path / "model", random_tensors())
    (tmp_path / "model/onnx/decoder_model_merged.onnx").unlink()
    with pytest.raises(ModelNotFound, match=r"encoder_model.onnx and decoder_model_merged.onnx"):
        open_checkpoint(tmp_path / "model")
