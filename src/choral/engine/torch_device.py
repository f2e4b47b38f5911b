"""Torch's device and precision, and the capacity of the device."""

from __future__ import annotations

import importlib.util
import os

import torch

from choral.config import ComputeType, EngineSettings
from choral.engine.capacity import SLOTS_SHARE, Capacity, free_memory, plan_capacity
from choral.errors import UsageError
from choral.model import int8
from choral.model.dims import ModelDims

# Of activations; with int8 and fp8 only the matrix products are quantized.
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.float32,
    "fp8": torch.bfloat16,
}
MIN_FP8_CAPABILITY = (8, 9)
# More rows add next to no throughput, and delay the next token of each.
MAX_SLOTS = {"cpu": 32, "cuda": 512}
GPU_SLOTS_SHARE = 0.8  # of the free memory; a CPU's memory is shared with other programs
# torch and oneDNN cache compiled primitives for 1,024 matrix sizes by default, some megabytes for every number of rows
# in a step: under a mixed load a process would grow for hours. These limits hold what a few steps use.
PRIMITIVE_CACHE_LIMITS = {"LRU_CACHE_CAPACITY": "32", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}


def pick_device(name: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if name.startswith("cuda") and not has_cuda:
        raise UsageError(f"device {name}: torch finds no CUDA device here; use --device cpu, or auto")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device {name}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def limit_primitive_cache() -> None:
    """Call before the first matrix product on a CPU, when the variables are read; a variable that is set wins."""
    for name, limit in PRIMITIVE_CACHE_LIMITS.items():
        os.environ.setdefault(name, limit)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy to the device asynchronously."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def has_gpu_path(device_name: str, dims: ModelDims) -> bool:
    """Whether `GpuRunner` can run: a CUDA device, Triton, and a head width that its kernels support."""
    head_dim = dims.n_text_state // dims.n_text_head
    is_supported = head_dim in (16, 32, 64, 128)
    is_cuda = pick_device(device_name).type == "cuda"
    return is_cuda and is_supported and importlib.util.find_spec("triton") is not None


def pick_compute_type(requested: ComputeType, device: torch.device) -> str:
    if requested == "auto":
        if device.type == "cuda":
            return "float16"
        return "int8" if int8.has_vnni() else "float32"
    if requested == "int8" and device.type != "cpu":
        raise UsageError("the torch engine has int8 on CPUs only; use float16, bfloat16 or fp8 on a GPU")
    if requested == "fp8" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < MIN_FP8_CAPABILITY):
        raise UsageError("compute type fp8 needs an NVIDIA GPU of the Ada or Hopper generation or newer")
    if requested == "int8" and not int8.has_vnni():
        raise UsageError("this CPU has no instructions for int8 (VNNI): use float32, or --engine ctranslate2")
    return requested


def capacity_of(
    dims: ModelDims,
    device: torch.device,
    dtype: torch.dtype,
    settings: EngineSettings,
    cross_dtype: torch.dtype | None = None,
    draft_dims: ModelDims | None = None,
) -> Capacity:
    """Slots and encoder cache that fit into the engine's share of the memory that is free now."""
    is_cuda = device.type == "cuda"
    free_bytes = torch.cuda.mem_get_info(device)[0] if is_cuda else free_memory()
    return plan_capacity(
        int(free_bytes * settings.memory_share),
        dims,
        dtype.itemsize,
        n_slots=settings.slots,
        max_slots=MAX_SLOTS[device.type],
        slots_share=GPU_SLOTS_SHARE if is_cuda else SLOTS_SHARE,
        cross_item_bytes=(cross_dtype or dtype).itemsize,
        draft_dims=draft_dims,
    )
