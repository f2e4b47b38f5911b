"""The limits on torch's primitive caches, in a separate process: they are read at the first matrix product."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from choral.engine.torch_device import PRIMITIVE_CACHE_LIMITS
from choral.model import int8

MIB = 1 << 20
PRODUCTS = """
import os
import torch
from choral.engine.torch_device import limit_primitive_cache
from choral.bench.process_tree import memory_bytes
from choral.common.malloc import trim_malloc

{first}
weight = torch.ones(1536, 384, dtype=torch.bfloat16)
for n_rows in range(2, 402):
    torch.nn.functional.linear(torch.ones(n_rows, 384, dtype=torch.bfloat16), weight)
    if n_rows in (101, 401):
        trim_malloc()
        print(memory_bytes(os.getpid()))
"""


@pytest.mark.skipif(not int8.has_native_bf16(), reason="products of bfloat16 are not made by oneDNN here")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(("first", "is_level"), [("limit_primitive_cache()", True), ("", False)])
def test_memory_is_bounded_under_many_matrix_sizes(first: str, is_level: bool) -> None:
    command = [sys.executable, "-c", PRODUCTS.format(first=first)]
    environment = {name: value for name, value in os.environ.items() if name not in PRIMITIVE_CACHE_LIMITS}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    after_100, after_400 = map(int, result.stdout.split())
    assert (after_400 - after_100 < 10 * MIB) == is_level
