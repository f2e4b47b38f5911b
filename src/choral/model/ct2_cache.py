"""The cache of models converted for CTranslate2: each is converted once, unless its own folder can be used directly.

A copy is named after the path, sizes and modification times of the files it was made from, so a replaced model is
converted again and its old copy removed. A copy is installed by one rename; a lock per copy makes concurrent processes
share one conversion.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from pathlib import Path

from choral.errors import ModelError
from choral.model import alignment_heads
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint
from choral.model.weights.mapped_file import read_json_object
from choral.model.weights.to_ctranslate2 import convert
from choral.storage import cache_folder, locked, storage_errors

_FORMAT_VERSION = 1  # of the output of `convert`: a new number invalidates all copies
_SOURCE = "source.txt"  # in a copy: the path of the model it was made from


def ctranslate2_folder(checkpoint: Checkpoint) -> Path:
    """A folder with this checkpoint that CTranslate2 can load; converts models of other formats on first use."""
    if _is_ready(checkpoint.path, checkpoint):
        return checkpoint.path
    root = cache_folder("CHORAL_CONVERTED", "converted")
    folder = root / _copy_name(checkpoint.path)
    if not _is_ready(folder, checkpoint):  # before the lock, which needs a writable folder
        with locked(root / f".{folder.name}.lock"):
            if not _is_ready(folder, checkpoint):
                _make_copy(checkpoint, folder)
    return folder


def _is_ready(folder: Path, checkpoint: Checkpoint) -> bool:
    """Whether the folder has all that CTranslate2 needs: some lack settings, or have those of a teacher model."""
    if not (folder / "model.bin").is_file() or not (folder / "config.json").is_file():
        return False
    try:
        existing, config = open_checkpoint(folder), read_json_object(folder / "config.json")
        tokenizer = Tokenizer.for_checkpoint(existing.dims, existing.vocabulary)
    except ModelError:
        return False
    return (
        existing.dims == checkpoint.dims
        and existing.vocabulary is not None
        and len(existing.vocabulary) == existing.dims.n_vocab
        and alignment_heads.checked(config.get("alignment_heads"), existing.dims) is not None
        and _holds(config.get("suppress_ids_begin"), (*tokenizer.encode(" "), tokenizer.eot))
        and (not tokenizer.is_multilingual or _holds(config.get("lang_ids"), tokenizer.language_tokens))
    )


def _holds(setting: object, ids: tuple[int, ...]) -> bool:
    return isinstance(setting, list) and sorted(setting, key=str) == sorted(ids, key=str)


def _copy_name(source: Path) -> str:
    """Includes ctime, because reproducible archives give all files the same mtime."""
    with storage_errors(source):
        whole = source.resolve()
        files = sorted(path for path in whole.iterdir() if path.is_file()) if whole.is_dir() else [whole]
        stats = [(path.name, path.stat()) for path in files]
    facts = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats]
    digest = hashlib.sha256(repr((_FORMAT_VERSION, str(whole), facts)).encode("utf-8", "surrogateescape")).hexdigest()
    prefix = re.sub(r"[^A-Za-z0-9._-]", "-", source.name).strip("-.")[:60]
    return f"{prefix}-{digest[:24]}"


def _make_copy(checkpoint: Checkpoint, folder: Path) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    with storage_errors(partial):
        for path in (partial, folder):  # left by a killed process, and a damaged copy
            if path.exists():
                shutil.rmtree(path)
        partial.mkdir(parents=True)
    try:
        convert(checkpoint, partial)
        with storage_errors(folder):
            (partial / _SOURCE).write_bytes(os.fsencode(checkpoint.path.resolve()))
            os.rename(partial, folder)
    except BaseException:  # also on KeyboardInterrupt: gigabytes must not stay behind
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _remove_superseded(folder, checkpoint.path.resolve())


def _remove_superseded(folder: Path, source: Path) -> None:
    """Delete earlier copies of this model, and copies of models that no longer exist."""
    for other in folder.parent.iterdir():
        # The new copy is ready, so errors do not matter; another process may be deleting the same.
        with contextlib.suppress(OSError):
            origin = Path(os.fsdecode((other / _SOURCE).read_bytes()))
            if other != folder and other.name[0] != "." and (origin == source or not origin.exists()):
                shutil.rmtree(other)
