"""Choral and openai-whisper, the oracle, loaded from the same weights in float32 on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import whisper.model

from choral.api import Model
from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.factory import torch_engine
from choral.longform.transcriber import Transcriber
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint


@dataclass(frozen=True)
class Pair:
    choral: Model
    engine: Engine
    tokenizer: Tokenizer
    oracle: whisper.model.Whisper


def oracle_from(checkpoint: Checkpoint) -> whisper.model.Whisper:
    dims = whisper.model.ModelDimensions(**dataclasses.asdict(checkpoint.dims))
    oracle = whisper.model.Whisper(dims)
    names = oracle.state_dict()
    oracle.load_state_dict({n: torch.tensor(np.asarray(checkpoint.tensors[n], dtype=np.float32)) for n in names})
    heads = torch.zeros(dims.n_text_layer, dims.n_text_head, dtype=torch.bool)
    for layer, head in checkpoint.alignment_heads:
        heads[layer, head] = True
    oracle.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return oracle.eval()


def pair_from(path: Path) -> Iterator[Pair]:
    return pair_of(open_checkpoint(path))


def pair_of(checkpoint: Checkpoint) -> Iterator[Pair]:
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    engine = torch_engine(checkpoint, tokenizer, EngineSettings(device="cpu", compute_type="float32"))
    with Model("pair", engine, Transcriber(engine, tokenizer, checkpoint.dims)) as model:
        yield Pair(model, engine, tokenizer, oracle_from(checkpoint))
