"""Where kernels run: compiled on a GPU, in Triton's interpreter under test, or not at all.

A kernel's function launches it on CUDA tensors; on others it calls the torch reference, so that everything built on it
works, and is tested, without a GPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

LOG2_E = 1.4426950408889634  # kernels use exp2
FULL_CHIP_PROGRAMS = 528  # four on each of an H200's 132 multiprocessors
is_interpreted = False  # tests set it, with TRITON_INTERPRET=1 in the environment


def has_kernels(x: Tensor) -> bool:
    return x.is_cuda or is_interpreted


def require(holds: bool, what: str) -> None:
    """Check shapes and strides: with wrong ones a kernel would read or write out of bounds."""
    if not holds:
        raise ValueError(f"a kernel needs {what}")


def pdl_options(x: Tensor, *, is_first: bool = False) -> dict[str, Any]:
    """Launch options for programmatic dependent launch: a kernel starts before the previous one has ended.

    Until its `gdc_wait` it may only touch memory that no kernel of its chain writes. The first kernel of a chain starts
    after all earlier work has ended.
    """
    is_supported = x.is_cuda and _has_dependent_launch(x.device)
    return {"PDL": True, "launch_pdl": not is_first} if is_supported else {"PDL": False}


@cache
def _has_dependent_launch(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
