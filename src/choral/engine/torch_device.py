"""Which device and precision torch uses, and how much room there is on it."""

from __future__ import annotations

import importlib.util
import os

import torch

from choral.config import ComputeType
from choral.engine.room import SLOTS_SHARE, free_memory, plan_capacity
from choral.engine.runner import Capacity
from choral.errors import UsageError
from choral.model import int8
from choral.model.dims import ModelDims

# What is kept between products; with int8 and fp8 only the products themselves are made of bytes.
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.float32,
    "fp8": torch.bfloat16,
}
FIRST_WITH_FP8 = (8, 9)  # compute capability
# More rows than this gain next to nothing, and make each of them wait longer for its next token.
MOST_SLOTS = {"cpu": 32, "cuda": 512}
GPU_SLOTS_SHARE = 0.8  # of the memory that is free; a CPU has other things to do with its own
# torch, and oneDNN below it, keep what they built for products of 1,024 sizes, some megabytes for every number of rows
# in a step: under a mixed load a process would grow for hours. These are as many as a few steps use.
KEPT_PRODUCTS = {"LRU_CACHE_CAPACITY": "32", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}


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
    """Before the first product on a CPU, when the variables are read; those that are set already stand."""
    for name, number in KEPT_PRODUCTS.items():
        os.environ.setdefault(name, number)


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """To the device, without waiting for it."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def has_gpu_path(device_name: str, dims: ModelDims) -> bool:
    """Whether there is a GPU that kernels can be compiled for, and a model of a shape that they take."""
    head_dim = dims.n_text_state // dims.n_text_head
    is_shape_known = head_dim in (16, 32, 64, 128)
    is_cuda = pick_device(device_name).type == "cuda"
    return is_cuda and is_shape_known and importlib.util.find_spec("triton") is not None


def pick_compute_type(wanted: ComputeType, device: torch.device) -> str:
    if wanted == "auto":
        return "float16" if device.type == "cuda" else "float32"
    if wanted == "int8" and device.type != "cpu":
        raise UsageError("compute type int8 is for CPUs with this engine; a GPU takes float16 or bfloat16")
    if wanted == "fp8" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < FIRST_WITH_FP8):
        raise UsageError("compute type fp8 needs an NVIDIA GPU of the Ada or Hopper generation or newer")
    if wanted == "int8" and not int8.has_vnni():
        raise UsageError("this CPU has no instructions for int8 (VNNI): use float32, or --engine ctranslate2")
    return wanted


def capacity_of(
    dims: ModelDims, device: torch.device, dtype: torch.dtype, n_slots: int, heard_dtype: torch.dtype | None = None
) -> Capacity:
    """How many slots there are, and how many encoder results are kept, in the memory that is free now."""
    is_cuda = device.type == "cuda"
    return plan_capacity(
        torch.cuda.mem_get_info(device)[0] if is_cuda else free_memory(),
        dims,
        dtype.itemsize,
        n_slots=n_slots,
        most_slots=MOST_SLOTS[device.type],
        slots_share=GPU_SLOTS_SHARE if is_cuda else SLOTS_SHARE,
        heard_item_bytes=(heard_dtype or dtype).itemsize,
    )
