"""Main of a request process: runs whole requests, several at once, each on a thread of its own.

The engine is at the other end of a socket; the process has no other connection but the one to its parent and those of
its downloads. It may use a bounded amount of memory. See `child_process` for what else it promises.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import socket
import sys
import threading
import time
import traceback
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from choral.audio import vad
from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import MAX_CHANNELS
from choral.common.malloc import limit_malloc_arenas
from choral.errors import ChoralError
from choral.serving.child_process import harden, limit_memory
from choral.serving.engine_client import connect
from choral.serving.request_events import AudioOpened, Progressed, RequestEvent, RequestFinished, SegmentReady
from choral.serving.request_inputs import open_input
from choral.serving.request_protocol import (
    ProcessConfig,
    StartMessage,
    decode_config,
    decode_start,
    encode_error,
    encode_segment,
    encode_transcript,
    frame,
    receive,
)
from choral.serving.request_run import DecodeFunction, DecodeLimits, RequestRun

if TYPE_CHECKING:
    from choral.longform.transcriber import Transcriber
    from choral.transcript import Segment

MAX_DECODE_BYTES = 2 * 2**30  # of memory: many times what the largest known file needs
REQUEST_BYTES = 32 * 2**20 + MAX_CHANNELS * 2 * 8 * 2**20  # one window at a time, and two stacks for each channel
PROGRESS_INTERVAL_S = 0.1


def main(parent_pid: int, engine_fd: int, decode_name: str) -> None:
    harden(parent_pid)
    limit_malloc_arenas()
    channel = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # a path like /dev/stdin must not read the channel
    received = receive(channel)
    if received is None:
        return
    config = decode_config(received[0])
    transcriber = connect(socket.socket(fileno=engine_fd))
    # Now, so that the first file's time does not include it, and a service does not grow at its first search.
    importlib.import_module("choral.audio.parallel_decode")
    vad.load()
    decode: DecodeFunction = pkgutil.resolve_name(decode_name)
    samples_bytes = int(config.max_memory_s * SAMPLE_RATE) * 2
    limit_memory(MAX_DECODE_BYTES + config.n_requests * (samples_bytes + REQUEST_BYTES))
    process = RequestProcess(channel, transcriber, config, decode)
    process.send(["ready"])
    process.serve()
    os._exit(0)  # without waiting for threads: the parent is gone, or needs none of them


class RequestProcess:
    def __init__(
        self, channel: socket.socket, transcriber: Transcriber, config: ProcessConfig, decode: DecodeFunction
    ) -> None:
        self._channel, self._transcriber, self._config, self._decode = channel, transcriber, config, decode
        self._send_lock = threading.Lock()
        self._runs: dict[int, RequestRun] = {}

    def serve(self) -> None:
        """Until the parent closes the connection."""
        while (received := self._receive()) is not None:
            message, fd = received
            match message[0]:
                case "start":
                    self._start(decode_start(message), fd)
                case "cancel":
                    if (run := self._runs.get(message[1])) is not None:
                        run.cancel()
                case "alive":
                    self.send(["alive"])

    def send(self, message: list[Any]) -> None:
        """From any thread. If the parent is gone, `serve` ends."""
        data = frame(message)
        try:
            with self._send_lock:
                self._channel.sendall(data)
        except OSError:
            pass

    def _receive(self) -> tuple[list[Any], int | None] | None:
        try:
            return receive(self._channel)
        except (OSError, EOFError):
            return None

    def _start(self, message: StartMessage, fd: int | None) -> None:
        limits, writer = self._config.limits, EventWriter(self, message)
        is_url = message.input.kind == "url"
        self._runs[message.id] = run = RequestRun(
            self._transcriber,
            lambda abort_handle: open_input(
                message.input, fd, limits, client_waits=message.client_waits, abort_handle=abort_handle
            ),
            DecodeLimits(
                max_memory_s=self._config.max_memory_s,
                max_audio_s=limits.max_audio_s,
                timeout_s=limits.max_decode_s(message.client_waits),
                decode=self._decode,
            ),
            message.options,
            message.priority,
            writer.write,
            text=message.text,
            wants_text=message.wants_text,
            references=message.references,
            on_fetched=(lambda: self.send(["fetched", message.id])) if is_url else (lambda: None),
        )
        threading.Thread(target=self._run, args=(message.id, run), name=f"request-{message.id}", daemon=True).start()

    def _run(self, number: int, run: RequestRun) -> None:
        run.run()
        del self._runs[number]


class EventWriter:
    """Turns the events of one request into few messages: the last window's segments are sent with the transcript."""

    def __init__(self, process: RequestProcess, request: StartMessage) -> None:
        self._process, self._request = process, request
        self._n_sent = 0
        self._is_last_window = False
        self._progress_s = 0.0  # when progress was sent last

    def write(self, event: RequestEvent) -> None:
        number, send = self._request.id, self._process.send
        match event:
            case AudioOpened(duration_s, fetch_s, decode_s):
                send(["opened", number, duration_s, fetch_s, decode_s])
            case SegmentReady(segment):
                self._write_segment(segment)
            case Progressed(done_s, total_s):
                self._write_progress(done_s, total_s)
            case RequestFinished(transcript):
                send(["finished", number, encode_transcript(transcript, self._n_sent)])
            case _:
                send(["failed", number, *failure(event.error)])

    def _write_segment(self, segment: Segment) -> None:
        if self._request.wants_segments and not self._is_last_window:
            self._n_sent += 1
            self._process.send(["segments", self._request.id, encode_segment(segment)])

    def _write_progress(self, done_s: float, total_s: float) -> None:
        self._is_last_window = total_s - done_s < 0.005  # half a mel frame, for rounding
        now_s = time.monotonic()
        if self._request.wants_progress and not self._is_last_window and now_s - self._progress_s > PROGRESS_INTERVAL_S:
            self._progress_s = now_s
            self._process.send(["progressed", self._request.id, done_s, total_s])


def failure(error: BaseException) -> list[Any]:
    """How a request failed: an error of the user's, a lack of memory, a cancellation, or a bug with its traceback."""
    if isinstance(error, ChoralError):
        return ["error", encode_error(error)]
    if isinstance(error, MemoryError):
        return ["memory"]
    if isinstance(error, CancelledError):
        return ["cancelled"]
    return ["bug", type(error).__name__, str(error), "".join(traceback.format_exception(error))]
