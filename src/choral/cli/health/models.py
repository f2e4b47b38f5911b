"""The models of this machine, and the places on its disks where Choral has to write."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from choral.cli.health.findings import Finding, Section, State, first_line
from choral.cli.progress import size
from choral.errors import ModelError, ModelNotFound, StorageError
from choral.model.store import InstalledModel, Store
from choral.storage import cache_root

ROOMY_BYTES = 1_000_000_000  # less than this, and a model or a long recording may not fit


def models_section() -> Section:
    try:
        store = Store()
        findings = [_installed(model) for model in store.list()]
    except StorageError as error:
        return Section("Models", (Finding("folder", str(error), State.PROBLEM),))
    return Section(
        f"Models in {store.root}", tuple(findings) or (Finding("none yet", "a model is fetched when it is first used"),)
    )


def wanted_model(name: str) -> Finding:
    """The model that would be loaded; fine where nothing has to be fetched."""
    try:
        return Finding("model", f"{name}, from {Store().path(name)}")
    except ModelNotFound as error:
        return Finding("model", str(error), State.NOTE)
    except (ModelError, StorageError) as error:
        return Finding("model", str(error), State.PROBLEM)


def _installed(model: InstalledModel) -> Finding:
    if model.damage is None:
        return Finding(model.name, size(model.size_bytes))
    return Finding(model.name, f"damaged: {model.damage}", State.NOTE, f"choral models remove {model.name}")


def disk_section(*, needs_fetching: bool) -> Section:
    return Section("Disk", tuple(_disk(needs_fetching)))


def _disk(needs_fetching: bool) -> Iterator[Finding]:
    if_closed = State.PROBLEM if needs_fetching else State.NOTE
    yield _place("models", lambda: Store().root, if_closed, "set CHORAL_MODELS to a folder that you may write to")
    yield _place("cache", cache_root, State.NOTE, "give yourself the right to write there")
    mend = "set TMPDIR to a folder that you may write to: long recordings are kept there while they are at work"
    yield _place("temporary files", lambda: Path(tempfile.gettempdir()), State.NOTE, mend)


def _place(subject: str, find: Callable[[], Path], if_closed: State, mend: str) -> Finding:
    """Whether something can be written there, found out by doing it, with a file that has no name."""
    try:
        folder = find()
    except (StorageError, FileNotFoundError) as error:
        return Finding(subject, first_line(error), if_closed, mend)
    try:
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
        free_bytes = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(subject, f"{folder} cannot be written: {error.strerror or error}", if_closed, mend)
    if free_bytes < ROOMY_BYTES:
        return Finding(subject, f"{folder}, only {size(free_bytes)} free", State.NOTE, "make room on that disk")
    return Finding(subject, f"{folder}, {size(free_bytes)} free")
