"""Where CTranslate2 finds a model: in the model's own folder, or in a copy that Choral converts once and keeps.

A copy belongs to the files it was made from: their place, sizes and times of change are its name, so a model that was
replaced is converted anew and the old copy goes. A copy appears in one move, or not at all; one lock a copy makes it
safe to ask for it from many processes at once.
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
from choral.storage import cache_root, locked, storage_errors

_FORMAT = 1  # of what `convert` writes: another number and every copy is made anew
_SOURCE = "source.txt"  # in a copy: the path of the model it was made from


def ctranslate2_folder(checkpoint: Checkpoint) -> Path:
    """The folder of this checkpoint for CTranslate2; the first time for a model of another kind it is written."""
    if _is_ready(checkpoint.path, checkpoint):
        return checkpoint.path
    root = _root()
    folder = root / _copy_name(checkpoint.path)
    if not _is_ready(folder, checkpoint):  # before the lock, which needs a place that can be written
        with locked(root / f".{folder.name}.lock"):
            if not _is_ready(folder, checkpoint):
                _make_copy(checkpoint, folder)
    return folder


def _root() -> Path:
    chosen = os.environ.get("CHORAL_CONVERTED")
    return Path(chosen).expanduser() if chosen else cache_root() / "converted"


def _is_ready(folder: Path, checkpoint: Checkpoint) -> bool:
    """Whether CTranslate2 can do all of its work from this folder: some lack settings, or have those of a teacher."""
    if not (folder / "model.bin").is_file() or not (folder / "config.json").is_file():
        return False
    try:
        found, config = open_checkpoint(folder), read_json_object(folder / "config.json")
        tokenizer = Tokenizer.for_checkpoint(found.dims, found.vocabulary)
    except ModelError:
        return False
    return (
        found.dims == checkpoint.dims
        and found.vocabulary is not None
        and len(found.vocabulary) == found.dims.n_vocab
        and alignment_heads.checked(config.get("alignment_heads"), found.dims) is not None
        and _holds(config.get("suppress_ids_begin"), (*tokenizer.encode(" "), tokenizer.eot))
        and (not tokenizer.is_multilingual or _holds(config.get("lang_ids"), tokenizer.language_tokens))
    )


def _holds(setting: object, ids: tuple[int, ...]) -> bool:
    return isinstance(setting, list) and sorted(setting, key=str) == sorted(ids, key=str)


def _copy_name(source: Path) -> str:
    """Times of change count, not only dates: archives that are packed reproducibly give all their files one date."""
    with storage_errors(source):
        whole = source.resolve()
        files = sorted(path for path in whole.iterdir() if path.is_file()) if whole.is_dir() else [whole]
        stats = [(path.name, path.stat()) for path in files]
    facts = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats]
    digest = hashlib.sha256(repr((_FORMAT, str(whole), facts)).encode("utf-8", "surrogateescape")).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", source.name).strip("-.")[:60]
    return f"{readable}-{digest[:24]}"


def _make_copy(checkpoint: Checkpoint, folder: Path) -> None:
    draft = folder.with_name(f".{folder.name}.partial")
    with storage_errors(draft):
        for place in (draft, folder):  # what a killed process left, and a copy that was damaged
            if place.exists():
                shutil.rmtree(place)
        draft.mkdir(parents=True)
    try:
        convert(checkpoint, draft)
        with storage_errors(folder):
            (draft / _SOURCE).write_bytes(os.fsencode(checkpoint.path.resolve()))
            os.rename(draft, folder)
    except BaseException:  # also when interrupted: gigabytes must not stay behind
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _remove_superseded(folder, checkpoint.path.resolve())


def _remove_superseded(folder: Path, source: Path) -> None:
    """Earlier copies of this model, and copies of models that are gone."""
    for other in folder.parent.iterdir():
        # The new copy stands, so nothing here may fail: another process may be removing the same.
        with contextlib.suppress(OSError):
            origin = Path(os.fsdecode((other / _SOURCE).read_bytes()))
            if other != folder and other.name[0] != "." and (origin == source or not origin.exists()):
                shutil.rmtree(other)
