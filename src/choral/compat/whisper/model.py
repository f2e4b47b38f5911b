"""`load_model` and `Whisper`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from choral.api import Model, load
from choral.compat.whisper.transcribe import transcribe as transcribe_function
from choral.config import EngineSettings
from choral.engine.engine_plan import plan_engine
from choral.model import catalog
from choral.model.dims import ModelDims
from choral.model.store import ModelStore

if TYPE_CHECKING:
    import torch


def available_models() -> list[str]:
    """OpenAI's models."""
    official = [model for model in catalog.KNOWN if (model.repo or "").startswith("openai/")]
    return [name for model in official for name in (model.name, *model.aliases)]


def load_model(
    name: str, device: str | torch.device | None = None, download_root: str | None = None, in_memory: bool = False
) -> Whisper:
    """By name or path; in float16 on a GPU and in float32 on a CPU. `in_memory` has no effect on the model."""
    settings = EngineSettings(device=str(device or "auto"))
    is_on_gpu = "cuda" in plan_engine(settings).device
    path = ModelStore(Path(download_root) if download_root else None).resolve(name)
    return Whisper(load(path, device=settings.device, compute_type="float16" if is_on_gpu else "float32"))


class Whisper:
    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def dims(self) -> ModelDims:
        return self.model.transcriber.dims

    @property
    def device(self) -> str:
        return self.model.device

    @property
    def is_multilingual(self) -> bool:
        return self.model.is_multilingual

    @property
    def num_languages(self) -> int:
        return len(self.model.transcriber.tokenizer.languages)

    transcribe = transcribe_function
