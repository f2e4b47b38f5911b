"""Requests on threads of the calling process: the same events as a request pool, without its processes."""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from choral.audio.recording import MAX_MEMORY_S, Recording
from choral.audio.source import AudioSource, open_source
from choral.longform.transcriber import Transcriber
from choral.options import Channels
from choral.remote.abort_handle import AbortHandle
from choral.serving.input_sources import OpenFile
from choral.serving.request_events import OnEvent, TranscribeRequest
from choral.serving.request_inputs import InputLimits, RequestAudio, open_input, share_input
from choral.serving.request_run import DecodeLimits, RequestRun

JOIN_TIMEOUT_S = 2.0  # a thread that reads from a pipe may never end


class LocalRequests:
    """The memory that a recording may take is divided by the number of requests that run when it starts."""

    def __init__(self, transcriber: Transcriber, limits: InputLimits) -> None:
        self._transcriber, self._limits = transcriber, limits
        self._running: dict[RequestRun, threading.Thread] = {}

    def start(self, request: TranscribeRequest, on_event: OnEvent) -> RequestRun:
        limits, waits = self._limits, request.client_waits
        run = RequestRun(
            self._transcriber,
            lambda abort_handle: open_here(request.audio, limits, waits, abort_handle, request.options.channels),
            DecodeLimits(
                max_memory_s=MAX_MEMORY_S / (1 + len(self._running)),
                max_audio_s=limits.max_audio_s,
                timeout_s=limits.max_decode_s(waits),
            ),
            request.options,
            request.priority,
            on_event,
            text=request.text,
            wants_text=request.wants_text,
            references=request.references,
        )
        # A daemon: a program that was asked to stop must not wait for a thread that reads from a pipe.
        self._running[run] = thread = threading.Thread(
            target=self._run, args=(run,), name="choral-request", daemon=True
        )
        thread.start()
        return run

    def close(self) -> None:
        """Cancel all requests, and wait a little for their threads."""
        threads = list(self._running.values())
        for run in list(self._running):
            run.cancel()
        deadline_s = time.monotonic() + JOIN_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _run(self, run: RequestRun) -> None:
        run.run()
        self._running.pop(run, None)


def open_here(
    audio: RequestAudio, limits: InputLimits, client_waits: bool, abort_handle: AbortHandle, channels: Channels
) -> AudioSource | Recording:
    if isinstance(audio, np.ndarray):
        return Recording.open(audio, channels=channels)
    if isinstance(audio, Recording):
        return audio.amplified(1.0)  # a view, whose reads can be cancelled while the owner goes on
    if isinstance(audio, str | os.PathLike | OpenFile):
        shared = share_input(audio, limits, channels)
        if shared is not None:
            return open_input(shared.ref, shared.fd, limits, client_waits=client_waits, abort_handle=abort_handle)
    assert not isinstance(audio, OpenFile)
    return open_source(audio)
