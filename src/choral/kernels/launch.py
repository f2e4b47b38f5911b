"""Where kernels run: compiled on a GPU, in Triton's interpreter under test, or not at all.

Each kernel's module offers one function. On CUDA tensors it launches the kernel; on others it computes the same with
torch, so that everything built on it works, and is tested, without a GPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

LOG2_E = 1.4426950408889634  # exponentials are of two in kernels
is_interpreted = False  # tests set it, with TRITON_INTERPRET=1 in the environment


def has_kernels(x: Tensor) -> bool:
    return x.is_cuda or is_interpreted


def require(holds: bool, what: str) -> None:
    """Shapes and strides that a kernel relies on: wrong ones would read or write somebody else's memory."""
    if not holds:
        raise ValueError(f"a kernel needs this: {what}")


def pdl_options(x: Tensor, *, is_first: bool = False) -> dict[str, Any]:
    """Options of a kernel that may start before the one ahead of it has ended, and itself waits for that.

    Until it waits it may touch only what no kernel of its chain writes. The first of a chain starts when all before it
    has ended, so the others can rely on that.
    """
    is_possible = x.is_cuda and _has_dependent_launch(x.device)
    return {"PDL": True, "launch_pdl": not is_first} if is_possible else {"PDL": False}


@cache
def _has_dependent_launch(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
