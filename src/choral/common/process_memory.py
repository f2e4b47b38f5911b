"""The memory of another process, from the proc file system."""

from __future__ import annotations

import re
from pathlib import Path


def process_memory_bytes(pid: int) -> int:
    """What it has resident, with its share of what it shares; 0 if the system does not tell, or it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def process_tree_memory_bytes(pid: int) -> int:
    """The same with the processes that it has started, and they."""
    return process_memory_bytes(pid) + sum(map(process_tree_memory_bytes, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended, or a thread has
        return []
