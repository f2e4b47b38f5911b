"""Loads the models of a server: what is known of a model from its files, and a model that is ready for requests."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from choral.api import Model
from choral.common.logs import LogFormat
from choral.common.process_memory import process_tree_memory_bytes
from choral.config import EngineSettings
from choral.engine.engine_plan import plan_engine
from choral.longform.load_transcriber import OnDownload, default_name
from choral.longform.token_logprobs import text_tokens
from choral.model import catalog
from choral.model.drafts import find_draft
from choral.model.store import ModelStore
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint
from choral.serving.async_requests import AsyncRequests
from choral.serving.device_processes import load_on_devices
from choral.serving.runtime import Runtime
from choral.serving.runtime_plan import needs_engine_process
from choral.serving.settings import ServingSettings
from choral.serving.supervised_engine import SupervisedEngine
from choral.transcript import Segment, Token

if TYPE_CHECKING:
    from choral.longform.transcriber import Transcriber


@dataclass(frozen=True)
class ModelInfo:
    """A model on this machine; its weights need not be in memory."""

    id: str  # its name for clients
    name: str  # of the store, or a path
    tokenizer: Tokenizer
    size_bytes: int  # of its files
    draft_bytes: int = 0  # of the files of its draft model; more than it needs if it shares the encoder
    is_stored: bool = False  # in the model store, not a path

    @property
    def weights_bytes(self) -> int:
        return self.size_bytes + self.draft_bytes

    @property
    def is_multilingual(self) -> bool:
        return self.tokenizer.is_multilingual

    def text_tokens(self, segment: Segment) -> list[Token]:
        return text_tokens(segment, self.tokenizer)


@dataclass(frozen=True)
class LoadedModel:
    """A model with its engine, and the processes that prepare its requests."""

    info: ModelInfo
    model: Model
    runtime: Runtime
    running: AsyncRequests

    @classmethod
    def of(cls, info: ModelInfo, model: Model, runtime: Runtime) -> LoadedModel:
        return cls(info, model, runtime, AsyncRequests(runtime))

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def transcriber(self) -> Transcriber:
        return self.model.transcriber

    @property
    def engine_pid(self) -> int | None:
        """Of the engine's process, if it has one of its own."""
        engine = self.transcriber.engine
        return engine.pid if isinstance(engine, SupervisedEngine) else None

    @property
    def memory_bytes(self) -> int:
        """Of the engine's processes, and its weights and slots on a GPU; 0 if it shares the server's process."""
        if self.engine_pid is None:
            return 0
        capacity = self.transcriber.engine.capacity
        n_gpus = self.model.device.count("cuda")  # each has all weights
        device_bytes = n_gpus * self.info.weights_bytes + capacity.n_slots * capacity.slot_bytes if n_gpus else 0
        return process_tree_memory_bytes(self.engine_pid) + device_bytes


class ModelLoader:
    def __init__(
        self, engine: EngineSettings, prep: ServingSettings, at_once: int = 0, log_format: LogFormat | None = None
    ) -> None:
        """`at_once` requests in each engine; 0: chosen for the device."""
        self.prep = prep
        self._engine, self._at_once, self._log_format = engine, at_once, log_format

    def describe(self, name: str | None, on_download: OnDownload | None = None) -> ModelInfo:
        """Read its dims and vocabulary, downloading it if needed; None is the model that fits this machine."""
        name = default_name(self._engine) if name is None else name
        is_path = catalog.find(name) is None and os.path.exists(os.path.expanduser(name))
        path = ModelStore().resolve(name, on_progress=on_download)
        # Of a path, only the last part is for clients.
        return self._info(Path(name).name if is_path else name, name, path, is_stored=not is_path)

    def pull(self, name: str) -> ModelInfo:
        """A model of the catalog or the Hugging Face hub, never a path."""
        path = ModelStore().pull(name)
        return self._info(name, str(path), path, is_stored=True)

    def _info(self, model_id: str, name: str, path: Path, *, is_stored: bool) -> ModelInfo:
        checkpoint = open_checkpoint(path)
        tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
        draft = find_draft(self._engine.draft, checkpoint) if plan_engine(self._engine).is_torch_on_gpu else None
        draft_bytes = 0 if draft is None else _size_bytes(draft)
        return ModelInfo(model_id, name, tokenizer, _size_bytes(path), draft_bytes, is_stored)

    def load(self, info: ModelInfo, n_models: int = 1, *, in_own_process: bool = False) -> Model:
        """An engine in a process of its own returns all its memory when it is closed.

        `n_models` share the memory of the device. Takes seconds, on any thread.
        """
        settings = replace(self._engine, memory_share=1 / n_models)
        is_on_gpu = plan_engine(settings).is_torch_on_gpu
        if (in_own_process and sys.platform == "linux") or needs_engine_process(is_on_gpu=is_on_gpu):
            engine = SupervisedEngine(info.name, settings, log_format=self._log_format, load=load_on_devices)
            return Model(info.name, engine, engine.transcriber)
        transcriber = load_on_devices(info.name, settings)
        return Model(info.name, transcriber.engine, transcriber)

    def start(self, info: ModelInfo, model: Model, n_models: int = 1) -> LoadedModel:
        """In the event loop, which its requests then run in; if that fails, the model is closed.

        `n_models` share the memory for decoded audio, and the downloads.
        """
        prep = replace(
            self.prep, memory_bytes=self.prep.memory_bytes // n_models, fetches=max(1, self.prep.fetches // n_models)
        )
        try:
            n_requests = self._at_once or model.requests_at_once
            loop = asyncio.get_running_loop()
            runtime = Runtime.for_service(model.transcriber, prep, n_requests, loop=loop)
        except BaseException:
            model.close()
            raise
        return LoadedModel.of(info, model, runtime)


def _size_bytes(path: Path) -> int:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
