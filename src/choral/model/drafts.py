"""Which draft model fits a model: distilled decoders, which share its encoder."""

from __future__ import annotations

from choral.errors import ModelNotFound
from choral.model.checkpoint import Checkpoint
from choral.model.store import ModelStore
from choral.model.weights import open_checkpoint

NO_DRAFT = "none"
DISTILLED = ("distil-large-v3.5", "distil-large-v3", "distil-large-v2", "distil-medium.en", "distil-small.en")


def open_draft(name: str, model: Checkpoint) -> Checkpoint | None:
    """The draft model of this name; with an empty name a distilled one, if one of the same shape is installed."""
    if name == NO_DRAFT:
        return None
    if name:
        return open_checkpoint(ModelStore().resolve(name))
    for candidate in DISTILLED:
        try:
            path = ModelStore().path(candidate)
        except ModelNotFound:
            continue
        draft = open_checkpoint(path)
        if is_distilled(draft, model):
            return draft
    return None


def is_distilled(draft: Checkpoint, model: Checkpoint) -> bool:
    """Whether the shapes are those of a model and its distilled form: the same but for fewer decoder layers."""
    mine, theirs = vars(draft.dims).copy(), vars(model.dims).copy()
    return mine.pop("n_text_layer") < theirs.pop("n_text_layer") and mine == theirs
