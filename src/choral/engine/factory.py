"""Which runner a model gets, and the engine on it. Heavy packages are imported here and not before."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

from choral.config import EngineSettings
from choral.engine.engine import Engine
from choral.engine.group import AnyEngine, EngineGroup
from choral.errors import MissingDependency, OutOfMemory
from choral.model.checkpoint import Checkpoint
from choral.model.tokenizer import Tokenizer

PACKAGES = {"torch": "torch", "ctranslate2": "ctranslate2"}


def pick_engine(settings: EngineSettings) -> str:
    """The engine that the settings name, or the best that is installed."""
    wanted = list(PACKAGES) if settings.engine == "auto" else [settings.engine]
    for name in wanted:
        if importlib.util.find_spec(PACKAGES[name]) is not None:
            return name
    if settings.engine == "torch":
        raise MissingDependency("this engine needs PyTorch: pip install 'choral[torch]'")
    raise MissingDependency("transcribing needs CTranslate2 or PyTorch: pip install ctranslate2, or 'choral[torch]'")


def make_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> AnyEngine:
    make = torch_engine if pick_engine(settings) == "torch" else ctranslate2_engine
    if not settings.devices:
        return make(checkpoint, tokenizer, settings)
    engines: list[Engine] = []
    try:
        for device in settings.device_names:
            # The group bounds the queue: each of its engines takes what it is given.
            own = replace(settings, device=device, devices="", queue_limit=sys.maxsize)
            engines.append(make(checkpoint, tokenizer, own))
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
        raise MissingDependency(f"PyTorch is installed and does not load ({error}): see `choral doctor`") from error
    if not has_gpu_path(settings.device, checkpoint.dims):
        return Engine(TorchRunner(checkpoint, tokenizer, settings), settings)
    return gpu_engine(checkpoint, tokenizer, settings)


def gpu_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    import torch

    from choral.engine.gpu_runner import GpuRunner

    try:
        return Engine(GpuRunner(checkpoint, tokenizer, settings), settings)
    except torch.OutOfMemoryError as error:
        reason = "this GPU has too little memory free for this model"
        raise OutOfMemory(f"{reason}: take a smaller one, fewer slots, or --device cpu ({error})") from error


def ctranslate2_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    try:
        from choral.engine.ct2_runner import Ct2Runner
    except (ImportError, OSError) as error:
        raise MissingDependency(f"CTranslate2 is installed and does not load ({error}): see `choral doctor`") from error
    return Engine(Ct2Runner(checkpoint, tokenizer, settings), settings)
