"""The store detects and reports models that are damaged, modified or unreadable."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from choral.errors import ModelCorrupt, ModelError, ModelNotFound, StorageError
from choral.model import manifest
from choral.model.manifest import Manifest, StoredFile
from choral.model.store import ModelStore
from choral.model.weights import open_checkpoint
from choral.remote.download import sha256_of
from local_server import LocalServer
from store_repos import INSTALLED, WEIGHTS, add_repo, names_in


@pytest.mark.parametrize("damage", ["cut", "gone", "no manifest", "bad manifest", "odd manifest"])
def test_damage_is_detected_on_use(server: LocalServer, store: ModelStore, damage: str) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    if damage == "cut":
        (path / "model.safetensors").write_bytes(WEIGHTS[:-1])
    elif damage == "gone":
        (path / "model.safetensors").unlink()
    elif damage == "no manifest":
        (path / "manifest.json").unlink()
    else:
        (path / "manifest.json").write_text("{" if damage == "bad manifest" else '{"files": [1]}')
    remedy = "run `choral models remove org/fine`, then `choral models pull org/fine`"
    for use in (store.resolve, store.pull, store.verify):
        with pytest.raises(ModelCorrupt, match=remedy):
            use("org/fine")
    assert store.list()[0].damage is not None
    assert store.remove("org/fine") > 0
    assert store.resolve("org/fine") == path


def test_changed_byte_is_detected_on_use(server: LocalServer, store: ModelStore) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    (path / "model.safetensors").write_bytes(b"?" + WEIGHTS[1:])
    for use in (store.resolve, store.pull, store.verify, lambda _: store.resolve(str(path))):
        with pytest.raises(ModelCorrupt, match=r"model.safetensors was changed.*choral models remove org"):
            use("org/fine")


def test_verify_detects_a_change_that_keeps_the_mtime(server: LocalServer, store: ModelStore) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    assert store.verify("org/fine").path == path
    weights = path / "model.safetensors"
    before = weights.stat()
    weights.write_bytes(b"?" + WEIGHTS[1:])
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.resolve("org/fine") == path
    for name in ("org/fine", "org--fine"):
        with pytest.raises(ModelCorrupt, match=rf"model.safetensors was changed.*choral models remove {name}"):
            store.verify(name)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read to check them, in order."""
    names: list[str] = []

    def counted(path: Path) -> str:
        names.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(manifest, "sha256_of", counted)
    return names


def test_only_files_with_a_new_mtime_are_read_once(server: LocalServer, store: ModelStore, hashed: list[str]) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    store.resolve("org/fine")
    assert hashed == []
    os.utime(path / "model.safetensors", ns=(5, 5))
    assert store.resolve("org/fine") == path
    assert store.resolve("org/fine") == path
    assert hashed == ["model.safetensors"]
    assert names_in(path) == INSTALLED


def test_manifest_without_mtimes_reads_files_once(server: LocalServer, store: ModelStore, hashed: list[str]) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    text = json.loads((path / "manifest.json").read_text())
    for file in text["files"]:
        del file["mtime_ns"]
    (path / "manifest.json").write_text(json.dumps(text))
    store.resolve("org/fine")
    store.resolve("org/fine")
    assert sorted(hashed) == [name for name in INSTALLED if name != "manifest.json"]


def test_read_only_folder_keeps_its_manifest(
    server: LocalServer, store: ModelStore, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    os.utime(path / "model.safetensors", ns=(5, 5))
    before = (path / "manifest.json").read_bytes()
    deny(monkeypatch, os, "replace", path)
    for _ in range(2):
        assert store.resolve("org/fine") == path
    assert hashed == ["model.safetensors"] * 2
    assert (path / "manifest.json").read_bytes() == before
    assert names_in(path) == INSTALLED


def deny(monkeypatch: pytest.MonkeyPatch, owner: Any, function: str, folder: Path) -> None:
    """Let a function raise PermissionError for paths in a folder: as root, chmod would have no effect."""
    original: Callable[..., Any] = getattr(owner, function)

    def refusing(path: Any, *others: Any, **named: Any) -> Any:
        if Path(path) == folder or folder in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, *others, **named)

    monkeypatch.setattr(owner, function, refusing)


def test_unreadable_hub_cache_is_ignored(
    server: LocalServer, store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_repo(server)
    deny(monkeypatch, Path, "stat", tmp_path / "cache" / "huggingface")
    with pytest.raises(ModelNotFound, match="not on this machine"):
        store.path("org/fine")
    assert store.resolve("org/fine") == store.root / "org--fine"


def test_unreadable_store_is_reported(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.root.mkdir()
    deny(monkeypatch, os, "scandir", store.root)
    for use in (store.list, store.available):
        with pytest.raises(StorageError, match=f"no permission to use {store.root}"):
            use()


def test_unreadable_model_does_not_hide_others(
    server: LocalServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_repo(server)
    add_repo(server, "org/other")
    locked = store.pull("org/fine")
    store.pull("org/other")
    deny(monkeypatch, Path, "open", locked)
    deny(monkeypatch, Path, "read_text", locked)
    deny(monkeypatch, os, "stat", locked)
    fine, other = store.list()
    assert (fine.name, other.name, other.damage) == ("org--fine", "org/other", None)
    assert fine.damage is not None
    assert fine.damage.startswith(f"no permission to use {locked / 'manifest.json'}")


def test_unreadable_model_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "model.bin"):
        deny(monkeypatch, Path, "stat", folder / name)
    with pytest.raises(ModelError, match=f"the model folder {folder} cannot be opened: Permission denied"):
        open_checkpoint(folder)


WHOLE_MANIFEST = {
    "name": "org/fine",
    "source": "a test",
    "entry": "w.bin",
    "files": [{"name": "w.bin", "size_bytes": 1, "sha256": hashlib.sha256(b"w").hexdigest()}],
}
FILE = WHOLE_MANIFEST["files"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"entry": 5},
        {"entry": "/etc/passwd"},
        {"entry": "../w.bin"},
        {"entry": "w\0"},
        {"entry": None},
        {"name": 5},
        {"name": "\ud800"},
        {"source": []},
        {"files": {}},
        {"files": []},
        {"files": ["w.bin"]},
        {"files": 7},
        {"files": None},
        {"more": 1},
        *({"files": [FILE, {"name": "x", **FILE, **odd}]} for odd in ({"name": 5}, {"size_bytes": "1"}, {"sha256": 0})),
        *({"files": [FILE, {**FILE, "name": name}]} for name in ("../w", "/w", "a/../../w", "c:\\w", "", "\0")),
        {"files": [FILE, {**FILE, "size_bytes": True}]},
        {"files": [FILE, {**FILE, "mtime_ns": 0.5}]},
        {"files": [FILE, {"name": "w.bin"}]},
        *({"without": key} for key in WHOLE_MANIFEST),
    ],
)
def test_manifest_with_wrong_types_is_damage(store: ModelStore, change: dict[str, Any]) -> None:
    folder = store.root / "org--fine"
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(b"w")
    (folder / "manifest.json").write_text(json.dumps(WHOLE_MANIFEST))
    assert store.path("org/fine") == folder / "w.bin"
    raw = {**WHOLE_MANIFEST, **change}
    raw.pop(raw.pop("without", ""), None)
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(
        ModelCorrupt, match=r"manifest.json is not a valid manifest .*run `choral models remove org/fine`"
    ):
        store.path("org/fine")
    assert store.list()[0].damage is not None


@pytest.mark.parametrize("text", ["5", "null", "[]", "[" * 100_000, "\xff", ""])
def test_invalid_manifest_is_damage(store: ModelStore, text: str) -> None:
    folder = store.root / "org--fine"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelCorrupt, match="run `choral models remove org/fine`"):
        store.path("org/fine")


def test_store_folder_as_path_opens_its_manifest_entry(store: ModelStore, tmp_path: Path) -> None:
    folder = store.root / "tiny.en"
    folder.mkdir(parents=True)
    (folder / "w.pt").write_bytes(b"w")
    files = (StoredFile("w.pt", 1, hashlib.sha256(b"w").hexdigest()),)
    Manifest("tiny.en", "a test", "w.pt", files).with_times(folder).write(folder)
    assert store.resolve(str(folder)) == store.path("tiny.en") == folder / "w.pt"
    assert ModelStore(tmp_path / "another").resolve(f"{folder}/") == folder / "w.pt"
    (folder / "w.pt").write_bytes(b"")
    with pytest.raises(ModelCorrupt, match=r"w.pt has 0 bytes.*run `choral models remove tiny.en`, then"):
        store.resolve(str(folder))
    with pytest.raises(ModelCorrupt, match=r"w.pt has 0 bytes"):
        ModelStore(tmp_path / "another").resolve(str(folder))


def test_manifest_of_another_program_is_ignored(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"start_url": "/"}')
    assert store.resolve(str(tmp_path)) == tmp_path
