"""Which draft model fits a model: distilled decoders, which share its encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from choral.errors import ModelNotFound
from choral.model.checkpoint import Checkpoint
from choral.model.store import ModelStore
from choral.model.weights import open_checkpoint

NO_DRAFT = "none"
DISTILLED = ("distil-large-v3.5", "distil-large-v3", "distil-large-v2", "distil-medium.en", "distil-small.en")
ENCODER_SAMPLES = ("encoder.conv1.weight", "encoder.blocks.0.attn.query.weight", "encoder.ln_post.weight")


def open_draft(name: str, model: Checkpoint) -> Checkpoint | None:
    path = find_draft(name, model)
    return None if path is None else open_checkpoint(path)


def find_draft(name: str, model: Checkpoint) -> Path | None:
    """The draft model of this name; with an empty name a distilled one, if one of the same shape is installed."""
    if name == NO_DRAFT:
        return None
    if name:
        return ModelStore().resolve(name)
    for candidate in DISTILLED:
        try:
            path = ModelStore().path(candidate)
        except ModelNotFound:
            continue
        draft = open_checkpoint(path)
        # Of another model with the same shape (large-v3-turbo), it would have to encode every window again.
        if is_distilled(draft, model) and has_same_encoder(draft, model):
            return path
    return None


def is_distilled(draft: Checkpoint, model: Checkpoint) -> bool:
    """Whether the shapes are those of a model and its distilled form: the same but for fewer decoder layers."""
    mine, theirs = vars(draft.dims).copy(), vars(model.dims).copy()
    return mine.pop("n_text_layer") < theirs.pop("n_text_layer") and mine == theirs


def has_same_encoder(draft: Checkpoint, target: Checkpoint) -> bool:
    """Whether a draft takes the features of the model's encoder; a few of the weights are compared."""
    mine, theirs = draft.dims, target.dims
    shapes = [(d.n_mels, d.n_audio_ctx, d.n_audio_state, d.n_audio_head, d.n_audio_layer) for d in (mine, theirs)]
    names = [*ENCODER_SAMPLES, f"encoder.blocks.{theirs.n_audio_layer - 1}.mlp.2.weight"]
    return shapes[0] == shapes[1] and all(
        np.array_equal(np.asarray(draft.tensors[name], np.float32), np.asarray(target.tensors[name], np.float32))
        for name in names
    )
