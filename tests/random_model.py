"""Whisper models of any shape with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from choral.model.alignment_heads import for_model
from choral.model.checkpoint import Checkpoint, expected_shapes
from choral.model.dims import ModelDims


def random_checkpoint(dims: ModelDims, path: Path = Path("random")) -> Checkpoint:
    rng = np.random.default_rng(7)
    tensors = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in expected_shapes(dims).items()}
    return Checkpoint(dims=dims, tensors=tensors, alignment_heads=for_model(dims), vocabulary=None, path=path)
