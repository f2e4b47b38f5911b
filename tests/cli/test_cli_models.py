"""`choral models` on a temporary model folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from choral.model.catalog import KNOWN
from choral.model.manifest import Manifest, StoredFile

Run = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> dict[str, str]:
    """One intact model, one damaged."""
    for name in ("base", "tiny"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "model.bin").write_bytes(bytes(2_500_000))
        sha256 = hashlib.sha256(bytes(2_500_000)).hexdigest()
        Manifest(name, "a test", ".", (StoredFile("model.bin", 2_500_000, sha256),)).write(folder)
    (tmp_path / "models/tiny/model.bin").write_bytes(b"short")
    return {"CHORAL_MODELS": str(tmp_path / "models")}


def test_list_shows_installed_and_available_models(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    result = choral("models", "list", env=store)
    assert result.code == 0
    weights = tmp_path / "models/tiny/model.bin"
    assert result.errors == f"tiny is damaged: {weights} has 5 bytes and should have 2,500,000\n"
    lines = result.out.splitlines()
    assert lines[0].split() == ["name", "installed", "size", "source", "path"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["base"] == ["yes", "2.5", "MB", "a", "test", str(tmp_path / "models/base")]
    assert rows["tiny"][0] == "damaged"
    assert rows["tiny.en"] == ["no", "Hugging", "Face", "hub,", "Python", "index"]
    assert set(rows) == {model.name for model in KNOWN}


def test_path(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    assert Path(choral("models", "path", "base", env=store).out.strip()) == tmp_path / "models/base"
    assert choral("models", "path", env=store).out == f"{tmp_path / 'models'}\n"
    missing = choral("models", "path", "small", env=store)
    assert (missing.code, missing.out) == (4, "")
    assert "choral models pull small" in missing.errors


def test_verify_reads_every_byte(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    result = choral("models", "verify", "base", env=store)
    assert (result.code, result.errors) == (0, "base is intact: 2.5 MB read\n")
    result = choral("models", "verify", "base", "tiny", "small", "junk", env=store)
    assert (result.code, result.out) == (4, "")
    base, tiny, small, junk = result.errors.splitlines()
    assert base == "base is intact: 2.5 MB read"
    assert tiny.startswith("choral: tiny: the model 'tiny' is damaged: ")
    assert small == f"choral: small: the model 'small' is not installed in {tmp_path / 'models'}"
    assert junk.startswith("choral: junk: there is no model called 'junk'")


def test_damaged_folders_can_be_removed(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models/junk").mkdir()
    listed = choral("models", "list", env=store)
    assert [line.split()[:2] for line in listed.out.splitlines()[1:4]] == [
        ["base", "yes"],
        ["junk", "damaged"],
        ["tiny", "damaged"],
    ]
    result = choral("models", "remove", "junk", env=store)
    assert (result.code, result.errors) == (0, "junk is removed: 0 kB freed\n")
    assert not (tmp_path / "models/junk").exists()


def test_remove(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    result = choral("models", "remove", "base", "small", "tiny", env=store)
    assert result.code == 4
    assert result.out == ""
    base, small, tiny = result.errors.splitlines()
    assert base == "base is removed: 2.5 MB freed"
    assert small.startswith("choral: small: the model 'small' is not installed")
    assert tiny.startswith("tiny is removed")
    assert not (tmp_path / "models/base").exists()


def test_pull_of_an_installed_model(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    result = choral("models", "pull", "base", env=store)
    assert result.code == 0
    assert result.errors.startswith("base is installed: ")


def test_pull_of_unknown_and_damaged_models(choral: Run, store: dict[str, str]) -> None:
    result = choral("models", "pull", "bass", "tiny", env=store)
    assert result.code == 4
    assert "there is no model called 'bass'. Did you mean base" in result.errors
    assert "the model 'tiny' is damaged" in result.errors


def test_pull_of_local_paths(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.pt").write_bytes(b"x")
    result = choral("models", "pull", "./mine.pt", tmp_path, "./base", env=store)
    assert result.code == 4
    file, folder, absent = result.errors.splitlines()
    assert "is a file on this machine, not the name of a model: it needs no download" in file
    assert "is a folder on this machine, not the name of a model: it needs no download" in folder
    assert absent.startswith("choral: ./base: there is no model called './base'. Did you mean base")
    assert absent.endswith("; a Hugging Face repository (org/name) can also be given")
