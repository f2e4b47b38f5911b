"""A process that decodes, one file at a time, until the pool that started it is gone.

It cannot outlive its parent, has no other connection than the one to it, may take so much memory and no more, and is
the first to go when the machine runs out. Signals that stop a service are left to the parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from choral.audio.constants import S16_SCALE
from choral.audio.loudness import level_of
from choral.audio.prep.messages import Answer, Order, receive_order, send_answer
from choral.audio.recording import Recording, decode_into
from choral.audio.samples import SampleWriter
from choral.audio.source import Source, source_of
from choral.errors import ChoralError, NotAudio

MEMORY_BYTES = 2 * 2**30  # that decoding may take: many times what the largest known file needs
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"  # of 1,000: before the parent, which has everyone's work

Decode = Callable[[SampleWriter, Source, float], tuple[str, ...]]


def main(parent: int, decode: str) -> None:
    _die_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    importlib.import_module("choral.audio.decode")  # now, and not within the first file's time
    work = named(decode)
    _bound_memory()
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as channel:
        while received := receive_order(channel):
            with contextlib.suppress(BrokenPipeError):  # the parent is gone: the next order never comes
                send_answer(channel, run(work, *received))


def run(decode: Decode, order: Order, audio: int, samples: int) -> Answer:
    start_s = time.perf_counter()
    with open(audio, "rb") as file, open(samples, "r+b") as output:
        writer = SampleWriter(0, output)
        try:
            source = source_of(file, order.name, suffix=order.suffix, is_ours=True)
            warnings = decode(writer, source, order.max_audio_s)
            recording = Recording(
                writer.finish(), n_samples=writer.n_samples, peak=writer.peak / S16_SCALE, name=order.name
            )
            level_db = level_of(recording, order.loudness) if order.loudness else 0.0
        except (ChoralError, MemoryError) as error:
            with contextlib.suppress(OSError):  # a full disk has been told already
                output.close()
            return Answer.of_error(error if isinstance(error, ChoralError) else _too_hungry(order.name))
        return Answer(writer.n_samples, recording.peak, warnings, level_db, time.perf_counter() - start_s)


def _too_hungry(name: str) -> NotAudio:
    return NotAudio(f"{name} takes more memory to decode than a file may: convert it to wav or flac")


def name_of(decode: Decode) -> str:
    return f"{decode.__module__}:{decode.__qualname__}"


def named(name: str) -> Decode:
    module, _, function = name.partition(":")
    decode: Decode = getattr(importlib.import_module(module), function)
    return decode


def decode_plainly(writer: SampleWriter, source: Source, max_audio_s: float) -> tuple[str, ...]:
    return decode_into(writer, source, max_audio_s)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    if os.getppid() != parent:  # it died before this could be told to the system
        sys.exit()


def _bound_memory() -> None:
    """By what is mapped now, since libraries map much and use little of it."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        mapped_bytes = int(pages.read_text().split()[0]) * resource.getpagesize()
        limit_bytes = mapped_bytes + MEMORY_BYTES
        hard_bytes = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard_bytes == resource.RLIM_INFINITY or hard_bytes > limit_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
