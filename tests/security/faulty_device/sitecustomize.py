"""Breaks the device of `choral serve` while it runs; put this folder into PYTHONPATH.

The file that DEVICE_FILE names says how: with `fail`, every step raises what torch raises after a fault of the GPU;
with `end`, the engine's loop ends, as after a bug. An empty file repairs the device.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

DEVICE_FILE = "CHORAL_TEST_DEVICE"


def break_engine() -> None:
    from choral.engine.engine_loop import EngineLoop

    fault = Path(os.environ[DEVICE_FILE])
    plain_action, plain_step = EngineLoop.action, EngineLoop.step

    def action(self: EngineLoop, step: Any) -> Any:
        def fail(tasks: object) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        return fail if fault.read_text() == "fail" else plain_action(self, step)

    def step(self: EngineLoop) -> bool:
        assert fault.read_text() != "end"
        return plain_step(self)

    EngineLoop.action, EngineLoop.step = action, step  # type: ignore[method-assign]


if DEVICE_FILE in os.environ and "serve" in sys.orig_argv:
    break_engine()
