"""The machine, as far as transcribing depends on it: processor, memory and GPUs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from choral.bench.machine import this_machine
from choral.cli.health.findings import Finding, Section, State
from choral.cli.health.gpus import Driver
from choral.cli.progress import size

ROOMY_BYTES = 1_000_000_000  # a small model, with what it works on, and room for the others
_CGROUP = Path("/sys/fs/cgroup")


def machine_section(driver: Driver) -> Section:
    return Section("Machine", (_processor(), _memory(), *_gpus(driver)))


def _processor() -> Finding:
    machine = this_machine()
    n_usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine.n_cpus
    cores = f"{machine.n_cpus} cores" if n_usable == machine.n_cpus else f"{n_usable} of {machine.n_cpus} cores"
    return Finding("processor", f"{machine.cpu}, {cores}")


def _memory() -> Finding:
    known = free_and_total_bytes()
    if known is None:
        return Finding("memory", "this system does not say how much there is")
    free_bytes, total_bytes = known
    text = f"{size(free_bytes)} free of {size(total_bytes)}"
    if free_bytes >= ROOMY_BYTES:
        return Finding("memory", text)
    return Finding("memory", text, State.NOTE, "close other programs, or use a small model: --model tiny")


def free_and_total_bytes() -> tuple[int, int] | None:
    """What this process could still take, and all there is, also where a container has less than the machine."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    free_bytes, total_bytes = kilobytes["MemAvailable"] * 1024, kilobytes["MemTotal"] * 1024
    with contextlib.suppress(OSError, ValueError):  # no such limit here
        limit_bytes = int((_CGROUP / "memory.max").read_text())
        used_bytes = int((_CGROUP / "memory.current").read_text())
        return min(free_bytes, max(0, limit_bytes - used_bytes)), min(total_bytes, limit_bytes)
    return free_bytes, total_bytes


def _gpus(driver: Driver) -> Iterator[Finding]:
    for gpu in driver.gpus:
        yield Finding("GPU", f"{gpu.name}, {size(gpu.total_bytes)}, driver for CUDA {driver.cuda_version}")
    if driver.trouble is not None:
        yield Finding("GPU", driver.trouble, State.NOTE)
    elif not driver.gpus:
        yield Finding("GPU", "none from NVIDIA: the processor does the work")
