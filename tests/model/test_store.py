"""The store: names, paths, listing and removal of models."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from choral.errors import ModelNotFound, StorageError
from choral.model import catalog
from choral.model.hub import Repo
from choral.model.manifest import Manifest, StoredFile
from choral.model.store import ModelStore, default_model
from choral.remote.download import sha256_of
from local_server import LocalServer
from store_repos import FILES, INSTALLED, WEIGHTS, add_repo, names_in


@pytest.mark.parametrize("name", ["org/fine", "org--fine"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_remove_accepts_every_name_of_a_model(
    server: LocalServer, store: ModelStore, name: str, is_damaged: bool
) -> None:
    add_repo(server)
    path = store.pull("org/fine")
    if is_damaged:
        (path / "manifest.json").unlink()
    assert store.remove(name) > len(WEIGHTS)
    assert names_in(store.root) == []


def test_remove_accepts_every_listed_name(store: ModelStore, tmp_path: Path) -> None:
    folder, elsewhere = store.root / "renamed", tmp_path / "elsewhere"
    for path in (
        folder,
        elsewhere,
        store.root / "junk",
        store.root / ".junk.0.partial",
        store.root / ".junk.x.partial",
    ):
        path.mkdir(parents=True)
    (folder / "w.pt").write_bytes(b"w")
    files = (StoredFile("w.pt", 1, hashlib.sha256(b"w").hexdigest()),)
    Manifest("mine", "a test", "w.pt", files).write(folder)
    (store.root / "link").symlink_to(elsewhere)
    assert [model.name for model in store.list()] == ["junk", "link", "mine"]
    for model in store.list():
        store.remove(model.name)
    assert names_in(store.root) == [".junk.x.partial"]
    assert elsewhere.is_dir()
    for name in ("", ".", "..", "../elsewhere", ".junk.x.partial", str(elsewhere)):
        with pytest.raises(ModelNotFound):
            store.remove(name)


def test_list_available_and_remove(server: LocalServer, store: ModelStore) -> None:
    assert store.list() == ()
    assert len(store.available()) == len(catalog.KNOWN)
    add_repo(server, "openai/whisper-large-v3-turbo")
    store.pull("turbo")
    [model] = store.list()
    assert (model.name, model.source, model.damage) == (
        "large-v3-turbo",
        "openai/whisper-large-v3-turbo@main (Hugging Face hub)",
        None,
    )
    assert model.size_bytes == sum(len(FILES[name]) for name in INSTALLED if name in FILES)
    assert "large-v3-turbo" not in [known.name for known in store.available()]
    assert store.remove("large-v3-turbo") > model.size_bytes  # and the manifest
    assert names_in(store.root) == []
    with pytest.raises(ModelNotFound, match="is not installed"):
        store.remove("turbo")


def test_local_paths_resolve_to_themselves(store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.pt").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "base").mkdir()
    assert store.resolve(str(tmp_path / "mine.pt")) == tmp_path / "mine.pt"
    assert store.resolve("mine.pt") == Path("mine.pt")
    assert store.resolve("org/name") == Path("org/name")
    assert store.resolve("./base") == Path("base")
    with pytest.raises(ModelNotFound, match="choral models pull base"):
        store.path("base")


@pytest.mark.parametrize(
    "name", ["/no/such/model", "models/mine.pt", "mine.bin", "./base", "~/x", "a/b/c", r"a\b", "~nobody/x"]
)
def test_missing_path_is_reported(store: ModelStore, name: str) -> None:
    with pytest.raises(ModelNotFound, match="there is no model file or folder"):
        store.resolve(name)


@pytest.mark.parametrize(("name", "hint"), [("tinny", "tiny"), ("Large-V3", "large-v3"), ("turbo3", "turbo")])
def test_unknown_name_gets_a_hint(store: ModelStore, name: str, hint: str) -> None:
    with pytest.raises(
        ModelNotFound, match=rf"no model called '{name}'\. Did you mean .*\b{hint}\b.*\? The names are tiny, "
    ):
        store.resolve(name)


@pytest.mark.parametrize("name", ["", " ", "..", "x" * 5000, "a\0b", "../..", "org/..", "org/name@../x"])
def test_invalid_names_are_not_found(
    store: ModelStore, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if os.path.exists(name):
        assert store.resolve(name) == Path(name)
    else:
        with pytest.raises(ModelNotFound):
            store.resolve(name)
    assert not store.root.exists()


def test_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHORAL_MODELS", str(tmp_path / "here"))
    assert ModelStore().root == tmp_path / "here"
    monkeypatch.delenv("CHORAL_MODELS")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ModelStore().root == tmp_path / "choral" / "models"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("HOME", "/Users/me")
    assert ModelStore().root == Path("/Users/me/Library/Caches/choral/models")


def test_unusable_root_is_reported(server: LocalServer, tmp_path: Path) -> None:
    add_repo(server)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="could not be written"):
        ModelStore(tmp_path / "file").resolve("org/fine")


def test_catalog_is_consistent() -> None:
    assert len(set(catalog.NAMES)) == len(catalog.NAMES) == 19
    repos = [model.repo for model in catalog.KNOWN if model.repo]  # the others are only in packages
    assert len(set(repos)) == len(repos)
    assert len({model.name for model in catalog.KNOWN}) == len(catalog.KNOWN)
    for model in catalog.KNOWN:
        assert model.repo is None or Repo.parse(model.repo) == Repo(model.repo, "main")
        for package in model.packages:
            assert all(len(file.sha256) == 64 and file.parts for file in package.files)
            assert all(archive.sha256 and archive.size_bytes for archive in package.archives)
    assert default_model(cuda=True) == "large-v3-turbo"
    assert default_model(cuda=False) == "base"


def test_packaged_weights_are_the_official_ones(tiny_en_pt: Path) -> None:
    assert sha256_of(tiny_en_pt) == "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03"
