"""Child processes that SIGINT interrupts, wherever the tests run.

A shell without job control starts background jobs with SIGINT ignored; children inherit that, and Python then installs
no handler for it.
"""

from __future__ import annotations

import signal
import subprocess
from typing import Any


def start_interruptible(command: list[str], **settings: Any) -> subprocess.Popen[Any]:
    """Like `subprocess.Popen`, but the child starts with the default action for SIGINT."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # exec resets handlers, but keeps SIG_IGN
    try:
        return subprocess.Popen(command, **settings)
    finally:
        signal.signal(signal.SIGINT, handler)
