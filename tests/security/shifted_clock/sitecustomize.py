"""Shifts the wall clock of `choral serve` and `choral worker` while they run; put this folder into PYTHONPATH.

The file that CLOCK_FILE names has the shift in seconds. Redis scripts add the value of the key CLOCK_KEY to the time of
Redis. Neither libfaketime nor a time namespace does this: with the former `time.sleep` fails and Redis does not start,
and the latter has no wall clock.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

CLOCK_FILE, CLOCK_KEY = "CHORAL_TEST_CLOCK", "test-clock"
_real_time = time.time


def shifted_time() -> float:
    return _real_time() + float(Path(os.environ[CLOCK_FILE]).read_text() or 0)


def shift_scripts() -> None:
    from choral.jobs import scripts

    plain = "local now = tonumber(time[1])"
    shifted = f"local now = tonumber(redis.call('GET', '{CLOCK_KEY}') or 0) + tonumber(time[1])"
    for name, script in list(vars(scripts).items()):
        if isinstance(script, scripts.Script):
            assert plain in script.text
            text = script.text.replace(plain, shifted)
            setattr(scripts, name, scripts.Script(text, hashlib.sha1(text.encode()).hexdigest()))


if CLOCK_FILE in os.environ and {"serve", "worker"} & set(sys.orig_argv):
    time.time = shifted_time
    shift_scripts()
