"""Processes of Choral's own: started with the parent's module path, and hardened from inside.

A child dies with its parent, even after `kill -9`, and ignores the signals that stop a service, because the parent
decides what is finished. A child that parses media is the first candidate of the OOM killer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from choral.errors import EngineError

# The child gets its parent's module search path, which excludes the working directory.
_START = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).main(*json.loads(sys.argv[3]))"
)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"  # of 1,000: killed before the parent, which holds everyone's work


def start_child(
    module: str,
    arguments: Sequence[Any],
    stdin: int,
    fds: Sequence[int] = (),
    environment: Mapping[str, str] = ONE_THREAD,
) -> subprocess.Popen[bytes]:
    """Run `main(*arguments)` of a module. Call it on a thread that lives as long as the child:

    Linux kills the child when the thread that started it ends.
    """
    command = [sys.executable, "-P", "-c", _START, json.dumps(sys.path), module, json.dumps(arguments)]
    try:
        # Python chooses at the first use, and passes over a disk that is full then: here that is when a service starts.
        variables = {**os.environ, "TMPDIR": tempfile.gettempdir(), **environment}
        return subprocess.Popen(command, stdin=stdin, stdout=subprocess.DEVNULL, env=variables, pass_fds=tuple(fds))
    except OSError as error:
        raise EngineError(f"could not start a process ({error.strerror}): free some memory") from error


def harden(parent_pid: int, *, is_expendable: bool = True) -> None:
    """Call it first in the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if is_expendable:
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    if os.getppid() != parent_pid:  # the parent died before the prctl call
        sys.exit()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tempfile.tempdir = os.environ["TMPDIR"]  # as the parent has chosen


def limit_memory(n_bytes: int) -> None:
    """Allow this much beyond what is mapped now, because libraries map far more than they use."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        limit_bytes = int(pages.read_text().split()[0]) * resource.getpagesize() + n_bytes
        hard_bytes = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard_bytes == resource.RLIM_INFINITY or hard_bytes > limit_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def was_killed(returncode: int) -> bool:
    """By a signal from outside (an operator, the OOM killer) rather than by its own crash."""
    return -returncode in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def death_reason(returncode: int) -> str:
    return f"exit code {returncode}" if returncode >= 0 else signal.Signals(-returncode).name
