"""The cache of models converted for CTranslate2: when a copy is made, reused, replaced and removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import ctranslate2
import numpy as np
import pytest

from choral.errors import StorageError
from choral.model import ct2_cache
from choral.model.alignment_heads import for_model
from choral.model.checkpoint import Checkpoint
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.weights import open_checkpoint
from choral.model.weights.to_ctranslate2 import convert
from random_model import random_checkpoint
from small_models import SHAPES, convert_to, write_hugging_face


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of these tests."""
    folder = tmp_path / "copies"
    monkeypatch.setenv("CHORAL_CONVERTED", str(folder))
    return folder


def test_ctranslate2_folders_are_used_in_place(tiny_en_ct2: Path, base_ct2: Path, copies: Path) -> None:
    for folder in (tiny_en_ct2, base_ct2):
        assert ctranslate2_folder(open_checkpoint(folder)) == folder
        assert ctranslate2_folder(open_checkpoint(folder / "model.bin")) == folder
    assert not copies.exists()


@pytest.fixture
def small_folder(tmp_path: Path) -> Path:
    """A model of its own shape, in a CTranslate2 folder."""
    return convert_to(tmp_path / "small", random_checkpoint(SHAPES["distilled: two decoder layers"]))


def with_config(folder: Path, **changes: object) -> Checkpoint:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return open_checkpoint(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"alignment_heads": [[7, 0], [10, 17]]},  # the teacher's, as distilled models are published
        {"alignment_heads": None},
        {"lang_ids": []},
        {"suppress_ids_begin": [220]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_folders_with_incomplete_settings_are_converted(
    small_folder: Path, copies: Path, changes: dict[str, object]
) -> None:
    assert ctranslate2_folder(open_checkpoint(small_folder)) == small_folder
    checkpoint = with_config(small_folder, **changes)
    folder = ctranslate2_folder(checkpoint)
    assert folder.parent == copies
    config = json.loads((folder / "config.json").read_text())
    assert config["alignment_heads"] == [list(pair) for pair in for_model(checkpoint.dims)]
    assert config["suppress_ids_begin"] == [220, 50257]
    assert len(config["lang_ids"]) == 99
    assert (folder / "model.bin").read_bytes() == (small_folder / "model.bin").read_bytes()


def test_folders_without_vocabulary_are_converted(small_folder: Path, copies: Path) -> None:
    (small_folder / "vocabulary.json").unlink()
    folder = ctranslate2_folder(open_checkpoint(small_folder))
    assert folder.parent == copies
    assert ctranslate2.models.Whisper(str(folder), device="cpu").num_languages == 99


def test_hugging_face_folders_are_converted(tmp_path: Path, copies: Path) -> None:
    checkpoint = random_checkpoint(SHAPES["English only, three heads"])
    write_hugging_face(tmp_path / "hugging", dict(checkpoint.tensors), checkpoint.dims, n_shards=2)
    folder = ctranslate2_folder(open_checkpoint(tmp_path / "hugging"))
    again = open_checkpoint(folder)
    for name, tensor in checkpoint.tensors.items():
        assert np.array_equal(again.tensors[name], tensor), name
    assert ctranslate2_folder(open_checkpoint(folder)) == folder


def copies_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_copy_is_reused_until_the_model_changes(tiny_en_pt: Path, copies: Path, tmp_path: Path) -> None:
    source = tmp_path / "mine.pt"
    shutil.copyfile(tiny_en_pt, source)
    first = ctranslate2_folder(open_checkpoint(source))
    written_ns = (first / "model.bin").stat().st_mtime_ns
    assert ctranslate2_folder(open_checkpoint(source)) == first
    assert (first / "model.bin").stat().st_mtime_ns == written_ns

    before = source.stat()
    changed = bytearray(source.read_bytes())
    position = changed.index(np.asarray(open_checkpoint(source).tensors["decoder.ln.bias"]).tobytes())
    changed[position] ^= 1
    source.write_bytes(changed)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # as an archive that gives all files one date
    assert (source.stat().st_size, source.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    second = ctranslate2_folder(open_checkpoint(source))
    assert second != first
    assert np.array_equal(
        open_checkpoint(second).tensors["decoder.ln.bias"], open_checkpoint(source).tensors["decoder.ln.bias"]
    )
    assert copies_in(copies) == [second.name]


def test_copies_of_deleted_models_are_removed(tiny_en_pt: Path, copies: Path, tmp_path: Path) -> None:
    for name in ("one.pt", "two.pt", "three.pt"):
        shutil.copyfile(tiny_en_pt, tmp_path / name)
    one = ctranslate2_folder(open_checkpoint(tmp_path / "one.pt"))
    two = ctranslate2_folder(open_checkpoint(tmp_path / "two.pt"))
    (tmp_path / "one.pt").unlink()
    three = ctranslate2_folder(open_checkpoint(tmp_path / "three.pt"))
    assert not one.exists()
    assert copies_in(copies) == sorted([two.name, three.name])


def test_damaged_copy_is_replaced(tiny_en_pt: Path, tiny_en_ct2: Path) -> None:
    folder = ctranslate2_folder(open_checkpoint(tiny_en_pt))
    for name in ("model.bin", "config.json", "vocabulary.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
        assert ctranslate2_folder(open_checkpoint(tiny_en_pt)) == folder
        assert (folder / name).read_bytes() == whole
    assert (folder / "model.bin").read_bytes() == (tiny_en_ct2 / "model.bin").read_bytes()


SETUP = """
import sys
from pathlib import Path
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.weights import open_checkpoint
checkpoint = open_checkpoint(Path(sys.argv[1]))
"""


def start_process(code: str, source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SETUP + code, str(source)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_concurrent_processes_share_one_copy(tiny_en_pt: Path, tiny_en_ct2: Path, copies: Path) -> None:
    code = (
        "print('ready', flush=True); sys.stdin.readline()\n"
        "folder = ctranslate2_folder(checkpoint)\n"
        "print(folder, (folder / 'model.bin').stat().st_ino, (folder / 'model.bin').stat().st_mtime_ns)\n"
    )
    processes = [start_process(code, tiny_en_pt) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = [process.communicate("go\n", timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert len({output for output, _ in outputs}) == 1
    [name] = copies_in(copies)
    assert (copies / name / "model.bin").read_bytes() == (tiny_en_ct2 / "model.bin").read_bytes()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_killed_conversion_is_repeated(tiny_en_pt: Path, tiny_en_ct2: Path, copies: Path) -> None:
    code = (
        "import os, signal\n"
        "from choral.model.weights import to_ctranslate2\n"
        "def stop(*_):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "to_ctranslate2._config = stop\n"  # after model.bin, before the rest
        "ctranslate2_folder(checkpoint)\n"
    )
    process = start_process(code, tiny_en_pt)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert any(name.endswith(".partial") for name in copies_in(copies))
    folder = ctranslate2_folder(open_checkpoint(tiny_en_pt))
    assert copies_in(copies) == [folder.name]
    assert (folder / "model.bin").read_bytes() == (tiny_en_ct2 / "model.bin").read_bytes()


def test_interrupted_conversion_leaves_nothing(tiny_en_pt: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(checkpoint: Checkpoint, folder: Path) -> None:
        convert(checkpoint, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(ct2_cache, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ctranslate2_folder(open_checkpoint(tiny_en_pt))
    assert copies_in(copies) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_full_disk_leaves_nothing(tiny_en_pt: Path, copies: Path) -> None:
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))\n"
        "from choral.errors import StorageError\n"
        "try:\n"
        "    ctranslate2_folder(checkpoint)\n"
        "except StorageError as error:\n"
        "    print(error)\n"
    )
    output, errors = start_process(code, tiny_en_pt).communicate(timeout=120)
    assert output.startswith("the disk is full: "), errors
    assert copies_in(copies) == []


def test_unwritable_cache_folder_is_named(tiny_en_pt: Path, copies: Path) -> None:
    copies.write_text("a file where a folder should be")
    with pytest.raises(StorageError, match="copies"):
        ctranslate2_folder(open_checkpoint(tiny_en_pt))


def test_conversion_needs_neither_torch_nor_ctranslate2(tiny_en_pt: Path) -> None:
    code = (
        "ctranslate2_folder(checkpoint)\n"
        "print([name for name in ('torch', 'transformers', 'ctranslate2') if name in sys.modules])\n"
    )
    output, errors = start_process(code, tiny_en_pt).communicate(timeout=120)
    assert output == "[]\n", errors
