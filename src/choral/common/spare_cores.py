"""How many CPU cores nobody uses, and so how many threads may work on one long recording.

A measurement takes some time, because what starts now must have begun to work: of a hundred requests that start at
once on an idle machine, none may take the cores that the others are about to use. The result is shared by all threads
of the process, for a moment.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from choral.common.processor import usable_cpus

MIN_LENGTH_S = 120.0  # a shorter recording is over before much could be gained
MAX_THREADS = 32
MEASURE_S = 0.05
VALID_S = 0.3  # decoding and voice detection of one recording ask within that time
_STAT = Path("/proc/stat")
_IDLE_FIELDS = slice(4, 6)  # of a CPU's line: idle, and waiting for a disk


class SpareCores:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began: tuple[float, float] | None = None  # when, and the idle time of all cores then
        self._measured_s = -VALID_S
        self._n_idle = 0

    def poll(self) -> int | None:
        """The number of idle cores; None while it is being measured, which starts with the first call."""
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._measured_s + VALID_S:
                return self._n_idle
            if self._began is None or now_s > self._began[0] + VALID_S:
                self._began = now_s, idle_s()
                return None
            began_s, idle_before_s = self._began
            if now_s < began_s + MEASURE_S:
                return None
            self._n_idle = round((idle_s() - idle_before_s) / (now_s - began_s))
            self._began, self._measured_s = None, now_s
            return self._n_idle


def idle_s() -> float:
    """How long the usable cores have been idle, together, since the machine started; 0 if that is not known."""
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return 0.0
    names = {f"cpu{number}" for number in usable_cpus()}
    fields = [line.split() for line in lines if line.startswith("cpu")]
    ticks = sum(int(tick) for each in fields if each[0] in names for tick in each[_IDLE_FIELDS])
    return ticks / os.sysconf("SC_CLK_TCK")


SPARE_CORES = SpareCores()  # the cores are the machine's, but each process measures by itself


def n_threads_for(length_s: float | None) -> int | None:
    """How many threads may work on one recording of about this length; None while it is being measured.

    One, unless it is long: then also one for each idle core.
    """
    if length_s is None or length_s < MIN_LENGTH_S:
        return 1
    n_idle = SPARE_CORES.poll()
    return None if n_idle is None else min(1 + n_idle, MAX_THREADS)
