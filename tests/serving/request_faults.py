"""Faults of a decoder in a request process, selected by the name of the file."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from choral.audio.recording import OnProgress, decode_into
from choral.audio.samples import SampleSink
from choral.audio.source import AudioSource
from choral.options import Channels


def hang() -> None:
    time.sleep(600)


def hang_holding_gil() -> None:
    """Hangs in C with the GIL held."""
    ctypes.PyDLL(None).sleep(600)


def eat_memory() -> None:
    bytearray(64 * 2**30)


def fail() -> None:
    raise ZeroDivisionError("a defect of the decoder")


FAULTS: dict[str, Callable[[], object]] = {
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "hang": hang,
    "uninterruptible": hang_holding_gil,
    "memory": eat_memory,
    "defect": fail,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def decode_with_faults(
    sink: SampleSink,
    source: AudioSource,
    max_audio_s: float,
    on_progress: OnProgress | None,
    cancel_event: threading.Event,
    channels: Channels,
) -> tuple[str, ...]:
    name = Path(source.name).stem
    if name == "killed-once":
        marker = Path(source.name).with_suffix(".marker")
        if not marker.exists():
            marker.touch()
            FAULTS["killed"]()
    if name in FAULTS:
        FAULTS[name]()
    if name == "slow":
        for _ in range(600):  # between two pieces of a file, where a decoder looks at its deadline
            time.sleep(0.1)
            assert on_progress is not None
            on_progress(1.0, None)
    return decode_into(sink, source, max_audio_s, on_progress, cancel_event, channels)
