"""Memory, CPU time and open files of a process and all its children; those that end meanwhile count as zero."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from choral.errors import MissingDependency

try:
    import psutil
except ImportError as error:
    raise MissingDependency("this benchmark needs psutil: pip install 'choral[bench]'") from error

SAMPLE_EVERY_S = 0.02
MAX_LOAD_PER_CPU = 1.25


class PeakMemory:
    """Samples the resident memory of a process every 20 ms between entry and exit; `pid` None is this process."""

    def __init__(self, pid: int | None = None) -> None:
        self._process = psutil.Process(pid)
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="choral-peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)


def require_linux() -> None:
    if not psutil.LINUX:
        raise MissingDependency("memory and open files of other processes can only be measured on Linux")


def process_tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants; empty if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def memory_bytes(pid: int) -> int:
    """Anonymous memory of the tree, pages that its processes share counted once.

    psutil has no such figure: its PSS and USS include file pages, which change with the other processes that map them.
    """
    return sum(_anonymous_bytes(process.pid) for process in process_tree(pid))


def _anonymous_bytes(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))
    return 0


def cpu_s(pid: int) -> float:
    """CPU seconds of the tree so far, including children that have ended."""
    total_s = 0.0
    for process in process_tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def n_open_files(pid: int) -> int:
    """File descriptors of the tree: files, sockets and pipes."""
    n_files = 0
    for process in process_tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            n_files += process.num_fds()
    return n_files


def n_files_in(pid: int, folder: Path) -> int:
    """Files with a name in the folder, and deleted files there that the tree holds open."""
    named = sum(1 for path in folder.rglob("*") if not path.is_dir())
    return named + sum(target.startswith(f"{folder}/") for target in _deleted_files(pid))


def _deleted_files(pid: int) -> Iterator[str]:
    """psutil lists only files that still have a name."""
    for process in process_tree(pid):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(link)
                    if target.endswith(" (deleted)"):
                        yield target


def busy_note() -> list[str]:
    """A warning if other programs use the machine; what the benchmark itself has just done counts too."""
    load, n_cpus = psutil.getloadavg()[0], psutil.cpu_count() or 1
    if load <= MAX_LOAD_PER_CPU * n_cpus:
        return []
    return [f"this machine was busy (load {load:.1f} on {n_cpus} cores): measure again when it is idle"]
