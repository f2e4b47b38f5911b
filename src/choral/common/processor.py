"""The processor: how many of its cores this process may use, and whether it has instructions for int8."""

from __future__ import annotations

import os
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def n_usable_cores() -> int:
    """The CPU cores this process may use; two hardware threads of a core count as two."""
    return len(usable_cpus()) or os.cpu_count() or 1


def n_physical_cores() -> int:
    """The same, with the hardware threads of a core counted once: for arithmetic they share its units."""
    try:
        return len({Path(_TOPOLOGY.format(cpu)).read_text() for cpu in usable_cpus()}) or n_usable_cores()
    except OSError:
        return n_usable_cores()


def default_threads() -> int:
    """For arithmetic: what OMP_NUM_THREADS says, or one for each core."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else n_physical_cores()


def has_vnni() -> bool:
    """Whether it accumulates int8 products in one instruction, as torch asks; assumed where Linux does not say it."""
    try:
        flags = _CPUINFO.read_text()
    except OSError:
        return True
    return "avx512_vnni" in flags


def usable_cpus() -> set[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    return set(affinity(0)) if affinity else set()
