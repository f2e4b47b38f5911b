"""Chooses the runner of a model and builds its engine. Heavy packages are imported here, on first use."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from choral.config import MAX_QUEUE_LIMIT, EngineSettings
from choral.engine.engine import Engine
from choral.engine.group import EngineGroup, LocalEngine
from choral.errors import MissingDependency, OutOfMemory
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

PACKAGES = {"torch": "torch", "ctranslate2": "ctranslate2"}


def pick_engine(settings: EngineSettings) -> str:
    """The engine named in the settings, or the best one installed."""
    names = list(PACKAGES) if settings.engine == "auto" else [settings.engine]
    for name in names:
        if importlib.util.find_spec(PACKAGES[name]) is not None:
            return name
    if settings.engine == "torch":
        raise MissingDependency("this engine needs PyTorch: pip install 'choral[torch]'")
    raise MissingDependency("transcribing needs CTranslate2 or PyTorch: pip install ctranslate2, or 'choral[torch]'")


def make_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> LocalEngine:
    make = torch_engine if pick_engine(settings) == "torch" else ctranslate2_engine
    if not settings.devices:
        return make(checkpoint, tokenizer, settings)
    engines: list[Engine] = []
    try:
        for device in settings.device_names:
            # The group bounds the queue, its engines do not.
            device_settings = replace(settings, device=device, devices="", queue_limit=MAX_QUEUE_LIMIT)
            engines.append(make(checkpoint, tokenizer, device_settings))
    except BaseException:
        for engine in engines:
            engine.close()
        raise
    return EngineGroup(engines, settings.queue_limit)


def torch_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    try:
        from choral.engine.torch_device import has_gpu_path
        from choral.engine.torch_runner import TorchRunner
    except (ImportError, OSError) as error:
        raise MissingDependency(f"PyTorch is installed but does not load ({error}): see `choral doctor`") from error
    if not has_gpu_path(settings.device, checkpoint.dims):
        return Engine(TorchRunner(checkpoint, tokenizer, settings), settings)
    return gpu_engine(checkpoint, tokenizer, settings)


def gpu_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    import torch

    from choral.engine.gpu_runner import GpuRunner

    try:
        return Engine(GpuRunner(checkpoint, tokenizer, settings), settings)
    except torch.OutOfMemoryError as error:
        advice = "use a smaller model, fewer slots, or --device cpu"
        raise OutOfMemory(f"this GPU has too little free memory for this model: {advice} ({error})") from error


def ctranslate2_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    try:
        from choral.engine.ct2_runner import Ct2Runner
    except (ImportError, OSError) as error:
        raise MissingDependency(f"CTranslate2 is installed but does not load ({error}): see `choral doctor`") from error
    return Engine(Ct2Runner(checkpoint, tokenizer, settings), settings)
