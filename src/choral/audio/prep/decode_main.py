"""Main loop of a decode process: decodes one file at a time until its parent closes the connection.

The process dies with its parent, has no connection but the one to it, may use a bounded amount of memory, and is the
first candidate of the OOM killer. It ignores the signals that stop a service: the parent decides what is finished.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pkgutil
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from choral.audio.loudness import measure_loudness
from choral.audio.prep.decode_protocol import DecodeReply, DecodeRequest, receive_request, send_reply
from choral.audio.recording import Recording, decode_into
from choral.audio.samples import SampleWriter
from choral.audio.source import AudioSource, source_from_file
from choral.errors import ChoralError, NotAudio

MAX_DECODE_BYTES = 2 * 2**30  # of memory: many times what the largest known file needs
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"  # of 1,000: killed before the parent, which holds everyone's work

DecodeFunction = Callable[[SampleWriter, AudioSource, float], tuple[str, ...]]


def main(parent_pid: int, function_name: str) -> None:
    _die_with(parent_pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    importlib.import_module("choral.audio.decode")  # now, so that the first file's time does not include it
    decode: DecodeFunction = pkgutil.resolve_name(function_name)
    _limit_memory()
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as channel:
        while received := receive_request(channel):
            with contextlib.suppress(BrokenPipeError):  # the parent is gone: `receive_request` returns None next
                send_reply(channel, run(decode, *received))


def run(decode: DecodeFunction, request: DecodeRequest, audio_fd: int, samples_fd: int) -> DecodeReply:
    start_s = time.perf_counter()
    with open(audio_fd, "rb") as file, open(samples_fd, "r+b") as output:
        writer = SampleWriter(0, output)
        try:
            source = source_from_file(file, request.name, suffix=request.suffix, owns_file=True)
            warnings = decode(writer, source, request.max_audio_s)
            recording = Recording.from_writer(writer, request.name)
            level_db = measure_loudness(recording, request.loudness) if request.loudness else 0.0
        except (ChoralError, MemoryError) as error:
            with contextlib.suppress(OSError):  # a full disk is in the reply already
                output.close()
            return DecodeReply.from_error(error if isinstance(error, ChoralError) else _out_of_memory(request.name))
        return DecodeReply(writer.n_samples, recording.peak, warnings, level_db, time.perf_counter() - start_s)


def _out_of_memory(name: str) -> NotAudio:
    return NotAudio(f"{name} needs too much memory to decode: convert it to wav or flac")


def name_of(decode: DecodeFunction) -> str:
    return f"{decode.__module__}:{decode.__qualname__}"


def default_decode(writer: SampleWriter, source: AudioSource, max_audio_s: float) -> tuple[str, ...]:
    return decode_into(writer, source, max_audio_s)


def _die_with(parent_pid: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    if os.getppid() != parent_pid:  # the parent died before the prctl call
        sys.exit()


def _limit_memory() -> None:
    """Allows `MAX_DECODE_BYTES` beyond what is mapped now, because libraries map far more than they use."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        mapped_bytes = int(pages.read_text().split()[0]) * resource.getpagesize()
        limit_bytes = mapped_bytes + MAX_DECODE_BYTES
        hard_bytes = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard_bytes == resource.RLIM_INFINITY or hard_bytes > limit_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
