"""Where requests run: in processes of their own, or on threads of the calling process.

One Python process decodes, searches and assembles what a slow engine needs; only an engine on a GPU is faster than
that. Processes cost about a second to start, and memory, so they must have something to gain.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from choral.common.processor import n_usable_cores

MIN_INPUTS = 2
MIN_CORES = 4  # one is the engine's
MAX_PROCESSES = 32


@dataclass(frozen=True)
class RuntimePlan:
    n_processes: int  # 0: threads of the calling process
    reason: str
    has_engine_process: bool = False

    def __str__(self) -> str:
        where = f"in up to {self.n_processes} processes" if self.n_processes else "on threads of this process"
        engine = "; the engine has a process of its own" if self.has_engine_process else ""
        return f"requests run {where}: {self.reason}{engine}"


def plan_runtime(device: str, n_inputs: int | None = None, n_processes: int | None = None) -> RuntimePlan:
    """For an engine on `device`, and this many inputs if that is known. `n_processes` overrides the choice."""
    n_cores = n_usable_cores()
    if n_processes is not None:
        return RuntimePlan(n_processes, "as requested")
    if sys.platform != "linux":
        return RuntimePlan(0, "request processes need Linux")
    if n_inputs is not None and n_inputs < MIN_INPUTS:
        return RuntimePlan(0, "there is one input")
    if "cuda" not in device:
        return RuntimePlan(0, f"the engine is on {device}, and one process can keep it busy")
    if n_cores < MIN_CORES:
        return RuntimePlan(0, f"{n_cores} CPU cores are too few for more processes")
    return RuntimePlan(
        min(n_cores - 1, MAX_PROCESSES), f"the engine is on {device}, and {n_cores} CPU cores can prepare its work"
    )


def plan_service(n_processes: int, *, has_engine_process: bool = False) -> RuntimePlan:
    """For a server or a worker, whose audio comes from strangers."""
    if sys.platform != "linux":
        return RuntimePlan(0, "request processes need Linux")
    return RuntimePlan(n_processes, "audio of strangers is decoded only in processes of its own", has_engine_process)


def needs_engine_process(*, is_on_gpu: bool) -> bool:
    """Of a server: its event loop would share a Python process with an engine that is fast enough to suffer from it."""
    return is_on_gpu and sys.platform == "linux"


def session_place(n_processes: int) -> str:
    return (
        f"live sessions run in {n_processes} processes" if n_processes else "live sessions run in the server's process"
    )


def n_session_processes(device: str, requested: int, max_sessions: int) -> int:
    """Of a server: processes for its live sessions; 0: they run in its own, which keeps up with a slower engine.

    `requested` overrides the choice unless it is negative.
    """
    if sys.platform != "linux" or (requested < 0 and ("cuda" not in device or n_usable_cores() < MIN_CORES)):
        return 0
    return min(requested if requested >= 0 else min(n_usable_cores() - 1, MAX_PROCESSES), max_sessions)
