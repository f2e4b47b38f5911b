"""Loads a model by name: resolves and downloads its files, and builds the engine and the transcriber on it."""

from __future__ import annotations

from collections.abc import Callable

from choral.config import EngineSettings
from choral.engine.engine_plan import plan_engine
from choral.engine.factory import make_engine
from choral.longform.transcriber import Transcriber
from choral.model.store import ModelStore, default_model
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint

OnDownload = Callable[[int, int | None], None]  # bytes so far, and in total


def load_transcriber(name: str, settings: EngineSettings, on_download: OnDownload | None = None) -> Transcriber:
    """By name, Hugging Face id or path."""
    checkpoint = open_checkpoint(ModelStore().resolve(name, on_progress=on_download))
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    return Transcriber(make_engine(checkpoint, tokenizer, settings), tokenizer, checkpoint.dims)


def default_name(settings: EngineSettings) -> str:
    """The model for these settings where none is named."""
    return default_model(cuda=plan_engine(settings).is_torch_on_gpu)
