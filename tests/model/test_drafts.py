"""Which draft is used without being named: an installed, distilled form of this very model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from choral.bench.random_model import RandomTensors, random_checkpoint
from choral.errors import ModelNotFound
from choral.model import drafts
from choral.model.drafts import open_draft

TINY = random_checkpoint("tiny")
TWO_LAYERS = replace(TINY.dims, n_text_layer=2)
DISTILLED = replace(TINY, dims=TWO_LAYERS, tensors=RandomTensors(TWO_LAYERS))
TENSORS = dict(DISTILLED.tensors)
OTHER_ENCODER = replace(DISTILLED, tensors={**TENSORS, "encoder.conv1.weight": TENSORS["encoder.conv1.weight"] + 1})


@pytest.mark.parametrize(
    ("installed", "is_used"), [(DISTILLED, True), (OTHER_ENCODER, False), (TINY, False), (None, False)]
)
def test_a_draft_that_fits_is_used(
    installed: drafts.Checkpoint | None, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def path(store: object, name: str) -> Path:
        if installed is None or name != "distil-large-v3":
            raise ModelNotFound(name)
        return Path(name)

    monkeypatch.setattr(drafts.ModelStore, "path", path)
    monkeypatch.setattr(drafts, "open_checkpoint", lambda path: installed)
    assert open_draft("", TINY) is (installed if is_used else None)
    assert open_draft("none", TINY) is None
