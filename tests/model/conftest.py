"""A local hub and package index, and an empty store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from choral.model.store import ModelStore
from choral.remote import download as fetch
from choral.remote.pip_config import pip_settings
from local_server import LocalServer, serve


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalServer]:
    for name in [name for name in os.environ if name.startswith(("HF_", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "_FIRST_PAUSE_S", 0.01)
    pip_settings.cache_clear()
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("PIP_INDEX_URL", server.url + "/simple")
        yield server
    pip_settings.cache_clear()


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")
