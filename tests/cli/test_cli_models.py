"""`choral models` on a folder of models of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from choral.model.catalog import KNOWN
from choral.model.manifest import Manifest, StoredFile

Run = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> dict[str, str]:
    """One whole model, one damaged."""
    for name in ("base", "tiny"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "model.bin").write_bytes(bytes(2_500_000))
        Manifest(name, "a test", ".", (StoredFile("model.bin", 2_500_000, "00"),)).write(folder)
    (tmp_path / "models/tiny/model.bin").write_bytes(b"short")
    return {"CHORAL_MODELS": str(tmp_path / "models")}


def test_list_shows_what_is_installed_and_what_can_be(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    result = choral("models", "list", env=store)
    assert (result.code, result.errors) == (0, "")
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


def test_remove(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    result = choral("models", "remove", "base", "small", "tiny", env=store)
    assert result.code == 4
    assert result.out == ""
    base, small, tiny = result.errors.splitlines()
    assert base == "base is removed: 2.5 MB freed"
    assert small.startswith("choral: small: the model 'small' is not installed")
    assert tiny.startswith("tiny is removed")
    assert not (tmp_path / "models/base").exists()


def test_pull_of_an_installed_model_is_done_at_once(choral: Run, store: dict[str, str], tmp_path: Path) -> None:
    result = choral("models", "pull", "base", env=store)
    assert result.code == 0
    assert result.errors.startswith("base is installed: ")


def test_pull_of_unknown_and_damaged_models(choral: Run, store: dict[str, str]) -> None:
    result = choral("models", "pull", "bass", "tiny", env=store)
    assert result.code == 4
    assert "there is no model called 'bass'. Did you mean base" in result.errors
    assert "the model 'tiny' is damaged" in result.errors
