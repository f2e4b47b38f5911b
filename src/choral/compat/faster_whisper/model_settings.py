"""Arguments of faster-whisper's `WhisperModel(...)` as engine settings."""

from __future__ import annotations

import warnings
from typing import Any

from choral.config import EngineSettings
from choral.engine.engine_plan import plan_engine
from choral.errors import UsageError

# CTranslate2's compute types. Its 8-bit ones differ in what is not in 8 bits.
COMPUTE_TYPES = {
    "auto": "auto",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "int8_float32": "int8",
    "int8_float16": "int8",
    "int8_bfloat16": "int8",
}
GPU_COMPUTE_TYPES = {
    "int8": "float16",
    "int8_float32": "float32",
    "int8_float16": "float16",
    "int8_bfloat16": "bfloat16",
}
SPEED_ONLY = ("flash_attention", "max_queued_batches", "tensor_parallel")


def engine_settings(
    device: str, device_index: int | list[int], compute_type: str, cpu_threads: int, model_kwargs: dict[str, Any]
) -> EngineSettings:
    if unknown := sorted(set(model_kwargs) - set(SPEED_ONLY)):
        raise UsageError(f"unknown argument {unknown[0]!r} of WhisperModel")
    chosen = EngineSettings(device=device, devices=_devices(device, device_index), threads=cpu_threads)
    is_on_gpu = "cuda" in plan_engine(chosen).device
    return EngineSettings(
        device=chosen.device,
        devices=chosen.devices,
        threads=cpu_threads,
        compute_type=_compute_type(compute_type, is_on_gpu=is_on_gpu),  # type: ignore[arg-type]  # checked there
    )


def _devices(device: str, device_index: int | list[int]) -> str:
    """For GPUs that are named; a CPU has no number."""
    indexes = device_index if isinstance(device_index, list) else [device_index]
    if indexes == [0] or device == "cpu":
        return ""
    return ",".join(f"cuda:{index}" for index in indexes)


def _compute_type(name: str, *, is_on_gpu: bool) -> str:
    if name == "default":  # that of the weights, which CTranslate2 keeps in 16 bits; on a CPU it computes in 32
        return "auto" if is_on_gpu else "float32"
    if name not in COMPUTE_TYPES:
        raise UsageError(f"compute_type is {name!r}; Choral has {', '.join(('default', *COMPUTE_TYPES))}")
    if is_on_gpu and name in GPU_COMPUTE_TYPES:
        warnings.warn(f"compute_type {name!r} becomes {GPU_COMPUTE_TYPES[name]!r} on a GPU", stacklevel=4)
        return GPU_COMPUTE_TYPES[name]
    return COMPUTE_TYPES[name]
