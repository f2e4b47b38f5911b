"""Model names and files, and times as text."""

from __future__ import annotations

import shutil
from pathlib import Path

from choral.errors import UsageError
from choral.model import catalog
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.store import ModelStore
from choral.model.weights import open_checkpoint
from choral.subtitles import srt_time, vtt_time


def available_models() -> list[str]:
    """The names that `WhisperModel` knows, besides Hugging Face ids and paths."""
    whisper = [model for model in catalog.KNOWN if model.repo is not None]
    return [name for model in whisper for name in (model.name, *model.aliases)]


def download_model(
    size_or_id: str,
    output_dir: str | None = None,
    local_files_only: bool = False,
    cache_dir: str | None = None,
    revision: str | None = None,
    use_auth_token: str | bool | None = None,
) -> str:
    """Download a model, and return the path of a folder with it in CTranslate2's format."""
    weights = find_model(size_or_id, cache_dir, local_files_only, revision, use_auth_token)
    converted = ctranslate2_folder(open_checkpoint(weights))
    if output_dir is None:
        return str(converted)
    shutil.copytree(converted, output_dir, dirs_exist_ok=True)
    return output_dir


def find_model(
    name: str, root: str | None, local_files_only: bool, revision: str | None, use_auth_token: str | bool | None
) -> Path:
    """The path of a model's weights, downloaded if necessary and allowed."""
    if isinstance(use_auth_token, str):
        raise UsageError("use_auth_token cannot be given here: set the environment variable HF_TOKEN instead")
    if revision is not None:
        if catalog.find(name) is not None:
            raise UsageError(f"revision has no meaning for {name!r}: give a Hugging Face id, such as org/name")
        name = f"{name}@{revision}"
    store = ModelStore(Path(root) if root is not None else None)
    return store.resolve(name, download=not local_files_only)


def format_timestamp(seconds: float, always_include_hours: bool = False, decimal_marker: str = ".") -> str:
    """01:02.345, and the hours before it where there are some."""
    shown = srt_time(seconds).replace(",", ".") if always_include_hours else vtt_time(seconds)
    return shown.replace(".", decimal_marker)
