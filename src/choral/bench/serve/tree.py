"""What a process and all its children take from the machine: memory, processor time, open files. Linux only.

Processes that end while they are looked at count as nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from choral.errors import MissingDependency

_TIMES = slice(11, 15)  # of /proc/PID/stat after the name: own user and system time, then that of children that ended


def require_proc() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        raise MissingDependency("what other processes take can only be measured on Linux")


def pids_of(pid: int) -> list[int]:
    """The process, its children, and theirs."""
    below: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            below |= {int(child) for child in _read(task / "children").split()}
    return [pid, *(found for child in sorted(below) for found in pids_of(child))]


def memory_bytes(pid: int) -> int:
    """Of the whole tree, without pages of files: those of libraries are lent, and count by who else has them open."""
    return sum(_own_memory_bytes(one) for one in pids_of(pid))


def cpu_s(pid: int) -> float:
    """Of the whole tree so far, with children that have ended."""
    ticks = 0
    for one in pids_of(pid):
        _, _, fields = _read(Path(f"/proc/{one}/stat")).rpartition(")")
        ticks += sum(map(int, fields.split()[_TIMES]))
    return ticks / os.sysconf("SC_CLK_TCK")


def n_open_files(pid: int) -> int:
    return sum(1 for _ in _open_files(pid))


def n_files_below(pid: int, folder: Path) -> int:
    """Files in a folder: those that have a name there, and those without one that the tree holds open."""
    named = sum(1 for path in folder.rglob("*") if not path.is_dir())
    nameless = sum(
        1 for target in _open_files(pid) if target.startswith(f"{folder}/") and target.endswith(" (deleted)")
    )
    return named + nameless


def _open_files(pid: int) -> Iterator[str]:
    for one in pids_of(pid):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{one}/fd").iterdir():
                with contextlib.suppress(OSError):
                    yield os.readlink(link)


def _own_memory_bytes(pid: int) -> int:
    lines = _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
