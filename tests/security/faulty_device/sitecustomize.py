"""Breaks the device of `choral serve`, or its event loop, while it runs; put this folder into PYTHONPATH.

The file that DEVICE_FILE names says how: with `fail`, every step raises what torch raises after a fault of the GPU;
with `end`, the engine's loop ends, as after a bug; with `spin`, `/health/ready` computes for SPIN_S in the event loop.
An empty file repairs everything.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

DEVICE_FILE = "CHORAL_TEST_DEVICE"
SPIN_S = 0.5  # of processor time


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


def break_event_loop() -> None:
    from choral.server.health import Readiness

    fault = Path(os.environ[DEVICE_FILE])
    plain_status = Readiness.status.fget
    assert plain_status is not None

    def status(self: Readiness) -> str:
        stop_s = time.thread_time() + SPIN_S
        while fault.read_text() == "spin" and time.thread_time() < stop_s:
            pass
        return str(plain_status(self))

    Readiness.status = property(status)  # type: ignore[method-assign, assignment]


if DEVICE_FILE in os.environ and "serve" in sys.orig_argv:
    break_engine()
    break_event_loop()
