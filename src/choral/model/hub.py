"""Models on the Hugging Face hub, through its HTTP API, and models in the local cache of Hugging Face's tools.

Honours HF_ENDPOINT, HF_TOKEN (or the token file), HF_HUB_OFFLINE, HF_HOME and HF_HUB_CACHE. A hub that does not
respond within seconds counts as unreachable, so that the next source is tried.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from choral.errors import ChoralError, DownloadFailed, ModelCorrupt, ModelNotFound
from choral.model.manifest import StoredFile
from choral.model.model_source import FetchedModel, overall_progress, total_bytes
from choral.remote.download import Progress, Response, download, get, parse_json, sha256_of
from choral.remote.urls import redact_url
from choral.storage import storage_errors, xdg_cache

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_CTRANSLATE2 = "model.bin"
_SIDECARS = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "vocab.json",
    "added_tokens.json",
    "merges.txt",
    "preprocessor_config.json",
    "vocabulary.txt",
    "vocabulary.json",
}
_LISTING_TIMEOUT_S = 8.0
_CONNECT_TIMEOUT_S = 4.0


@dataclass(frozen=True)
class Repo:
    """`org/name`, or `org/name@revision`."""

    id: str
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> Repo | None:
        match = re.fullmatch(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w.][\w./-]*))?", text, re.ASCII)
        if match is None or ".." in text:
            return None
        return cls(match[1], match[2] or "main")


@dataclass(frozen=True)
class HubFile:
    name: str
    size_bytes: int | None
    sha256: str | None  # known for large files


@dataclass(frozen=True)
class HubSource:
    repo: Repo

    @property
    def label(self) -> str:
        return f"{self.repo.id}@{self.repo.revision} (Hugging Face hub)"

    def fetch(self, folder: Path, on_progress: Progress | None) -> FetchedModel:
        commit, files = _listing(self.repo)
        selected = select_files(files)
        if not selected:
            raise ModelNotFound(f"{self.repo.id} holds no weights in safetensors or CTranslate2 form")
        total = total_bytes([file.size_bytes for file in selected])
        stored: list[StoredFile] = []
        for file in selected:
            done_bytes = sum(earlier.size_bytes for earlier in stored)
            stored.append(self._fetch(file, commit, folder, overall_progress(on_progress, done_bytes, total)))
        return FetchedModel(".", tuple(stored))

    def _fetch(self, file: HubFile, commit: str, folder: Path, on_progress: Progress | None) -> StoredFile:
        url = f"{_endpoint()}/{self.repo.id}/resolve/{quote(commit, safe='')}/{file.name}"
        target = folder / file.name
        if file.sha256 is None:  # a copy from an earlier try may be of another revision
            with storage_errors(target):
                target.unlink(missing_ok=True)
        download(url, target, sha256=file.sha256, headers=_authorization(), on_progress=on_progress)
        size_bytes = target.stat().st_size
        if file.size_bytes not in (None, size_bytes):
            target.unlink()
            raise ModelCorrupt(f"{redact_url(url)} has {size_bytes:,} bytes and should have {file.size_bytes:,}")
        return StoredFile(file.name, size_bytes, file.sha256 or sha256_of(target))


def select_files(files: tuple[HubFile, ...]) -> tuple[HubFile, ...]:
    """The files to download, weights first; empty where there are no weights in a supported format."""
    names = {file.name for file in files}
    if _WHOLE in names:
        weights = {_WHOLE}
    elif _INDEX in names:
        weights = {_INDEX, *(name for name in names if _SHARD.fullmatch(name))}
    elif _CTRANSLATE2 in names and "config.json" in names:
        weights = {_CTRANSLATE2}
    else:
        return ()
    selected = [file for file in files if file.name in weights | _SIDECARS]
    return tuple(sorted(selected, key=lambda file: (file.name not in weights, file.name)))


def cached_snapshot(repo: Repo) -> Path | None:
    """A complete and readable copy in the cache of Hugging Face's own tools."""
    folder = _hub_cache() / ("models--" + repo.id.replace("/", "--"))
    try:
        snapshot = folder / "snapshots" / (_text_of(folder / "refs" / repo.revision) or repo.revision)
        return snapshot if snapshot.is_dir() and _is_complete(snapshot) else None
    except PermissionError:
        return None


def _is_complete(folder: Path) -> bool:
    if not (folder / "config.json").is_file():
        return False
    if (folder / _WHOLE).is_file() or (folder / _CTRANSLATE2).is_file():
        return True
    try:
        shards = set(json.loads((folder / _INDEX).read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    return bool(shards) and all((folder / shard).is_file() for shard in shards)


def _listing(repo: Repo) -> tuple[str, tuple[HubFile, ...]]:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise DownloadFailed("HF_HUB_OFFLINE is set")
    url = f"{_endpoint()}/api/models/{repo.id}/revision/{quote(repo.revision, safe='')}?blobs=true"
    listing = parse_json(_get_within(_LISTING_TIMEOUT_S, url))
    try:
        files = tuple(
            HubFile(item["rfilename"], item.get("size"), (item.get("lfs") or {}).get("sha256"))
            for item in listing["siblings"]
        )
        return str(listing.get("sha") or repo.revision), files
    except (KeyError, TypeError, AttributeError) as error:
        raise DownloadFailed(f"{redact_url(url)} did not respond like a Hugging Face hub") from error


def _get_within(seconds: float, url: str) -> Response:
    """One try with an overall limit: behind a firewall that drops packets, each address times out in turn."""
    outcome: queue.Queue[Response | ChoralError] = queue.Queue()

    def request() -> None:
        try:
            outcome.put(
                get(url, headers=_authorization(), timeout_s=_CONNECT_TIMEOUT_S, tries=1, not_found=ModelNotFound)
            )
        except ChoralError as error:
            outcome.put(error)

    threading.Thread(target=request, daemon=True, name="choral-hub").start()
    try:
        response = outcome.get(timeout=seconds)
    except queue.Empty:
        raise DownloadFailed(f"{redact_url(url)}: no response within {seconds:g} seconds") from None
    if isinstance(response, ChoralError):
        raise response
    return response


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _hub_home() -> Path:
    home = os.environ.get("HF_HOME")
    return Path(home).expanduser() if home else xdg_cache() / "huggingface"


def _hub_cache() -> Path:
    cache = os.environ.get("HF_HUB_CACHE")
    return Path(cache).expanduser() if cache else _hub_home() / "hub"


def _authorization() -> dict[str, str]:
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        file = Path(os.environ.get("HF_TOKEN_PATH") or _hub_home() / "token")
        token = _text_of(file)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _text_of(file: Path) -> str:
    """Empty where the file does not exist or may not be read."""
    try:
        return file.read_text().strip() if file.is_file() else ""
    except PermissionError:
        return ""
