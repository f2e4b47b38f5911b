"""Builds the engine of a model on the runner that `engine_plan` chooses. Heavy packages are imported on first use."""

from __future__ import annotations

import logging
from dataclasses import replace

from choral.config import MAX_QUEUE_LIMIT, EngineSettings
from choral.engine.engine import Engine
from choral.engine.engine_plan import import_errors, plan_engine
from choral.engine.group import EngineGroup, LocalEngine
from choral.errors import OutOfMemory, UsageError
from choral.model.checkpoint import Checkpoint
from choral.model.drafts import NO_DRAFT, open_draft
from choral.model.tokenizer import Tokenizer

log = logging.getLogger("choral.engine")


def make_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> LocalEngine:
    plan = plan_engine(settings)
    log.info(plan)
    make = torch_engine if plan.engine == "torch" else ctranslate2_engine
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
    with import_errors("PyTorch"):
        from choral.engine.torch_device import has_gpu_path
        from choral.engine.torch_runner import TorchRunner
    if not has_gpu_path(settings.device, checkpoint.dims):
        require_no_draft(settings)
        return Engine(TorchRunner(checkpoint, tokenizer, settings), settings)
    return gpu_engine(checkpoint, tokenizer, settings)


def require_no_draft(settings: EngineSettings) -> None:
    if settings.draft not in ("", NO_DRAFT):
        raise UsageError(f"draft is {settings.draft!r}; draft models need an NVIDIA GPU with torch and Triton")


def gpu_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    import torch

    from choral.engine.gpu_runner import GpuRunner

    draft = open_draft(settings.draft, checkpoint)
    try:
        return Engine(GpuRunner(checkpoint, tokenizer, settings, draft), settings)
    except torch.OutOfMemoryError as error:
        advice = "use a smaller model, fewer slots, or --device cpu"
        raise OutOfMemory(f"this GPU has too little free memory for this model: {advice} ({error})") from error


def ctranslate2_engine(checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> Engine:
    require_no_draft(settings)
    with import_errors("CTranslate2"):
        from choral.engine.ct2_runner import Ct2Runner
    return Engine(Ct2Runner(checkpoint, tokenizer, settings), settings)
