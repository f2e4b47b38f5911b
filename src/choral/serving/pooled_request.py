"""A request in the pool: its phase, what it has reported, and what a rerun must not report again.

Belongs to the pool's thread, except `cancel`. A request that runs again in another process gives the same text, so its
events continue where they were: each segment is reported once, and progress does not go back.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Literal

from choral.serving.request_events import (
    AudioOpened,
    OnEvent,
    Progressed,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    SegmentReady,
    TranscribeRequest,
)
from choral.serving.request_inputs import InputLimits, SharedInput
from choral.serving.request_protocol import (
    ProcessMessage,
    StartMessage,
    decode_segment,
    decode_transcript,
    encode_start,
)
from choral.transcript import Segment

if TYPE_CHECKING:
    from choral.serving.connected_process import ConnectedProcess

log = logging.getLogger("choral.serving")
Phase = Literal["waiting", "fetching", "decoding", "transcribing"]
CANCEL_GRACE_S = 5.0  # for a request to notice that it was cancelled
_numbers = itertools.count(1)


class PooledRequest:
    def __init__(self, request: TranscribeRequest, shared: SharedInput, host: str | None, on_event: OnEvent) -> None:
        self.id = next(_numbers)
        self.request, self.shared, self.host = request, shared, host
        self.client_waits = request.client_waits
        self.phase: Phase = "waiting"
        self.is_fetching = False  # counts towards the downloads of its host
        self.phase_s = 0.0  # when the phase began
        self.started_s, self.waited_s = time.monotonic(), 0.0  # waited: until its last run began
        self.process: ConnectedProcess | None = None
        self.n_kills = 0  # of processes that it ran in
        self.must_run_alone = False  # suspected of crashing its process
        self.is_done = False  # its last event has been reported
        self.cancelled_s: float | None = None
        self.on_cancel: Callable[[PooledRequest], None] = lambda request: None
        self.on_end: Callable[[PooledRequest], None] = lambda request: None
        self._on_event = on_event
        self._segments: list[Segment] = []  # of this run
        self._is_opened = False  # has been reported
        self._n_reported = 0  # segments, of all runs
        self._reported_s = 0.0  # progress, of all runs

    def cancel(self) -> None:
        """From any thread; the last event is then a `CancelledError`, unless it has ended."""
        self.on_cancel(self)

    @property
    def name(self) -> str:
        """For messages."""
        return self.shared.ref.shown_name

    def enter(self, phase: Phase) -> None:
        now_s = time.monotonic()
        if self.phase == "waiting":
            self.waited_s = now_s - self.started_s
        self.phase, self.phase_s = phase, now_s

    def start_message(self) -> bytes:
        request = self.request
        return encode_start(
            StartMessage(
                id=self.id,
                input=self.shared.ref,
                options=request.options,
                text=request.text,
                wants_text=request.wants_text,
                references=request.references,
                priority=request.priority,
                client_waits=request.client_waits,
                wants_segments=request.wants_segments,
                wants_progress=request.wants_progress,
            )
        )

    def run_again(self) -> None:
        self.process = None
        self._segments = []
        self.enter("waiting")

    def late_s(self, now_s: float, limits: InputLimits) -> float:
        """For how long it has been expected to end: it was cancelled, or decoding takes longer than it may."""
        if self.cancelled_s is not None:
            return now_s - max(self.cancelled_s, self.phase_s) - CANCEL_GRACE_S
        return 0.0 if self.phase != "decoding" else now_s - self.phase_s - limits.max_decode_s(self.client_waits)

    def apply(self, message: ProcessMessage) -> None:
        """A message of the process about this request, except its failure."""
        match message:
            case ["fetched", _]:
                self.enter("decoding")
            case ["opened", _, duration_s, fetch_s, decode_s]:
                self.enter("transcribing")
                if not self._is_opened:
                    self._is_opened = True
                    self._report(AudioOpened(duration_s, fetch_s, decode_s, self.waited_s))
            case ["segments", _, values]:
                self._add_segment(decode_segment(values))
            case ["progressed", _, done_s, total_s]:
                self._report_progress(done_s, total_s)
            case ["finished", _, values]:
                transcript = decode_transcript(values, self._segments)
                if self.request.wants_segments:
                    for segment in transcript.segments[self._n_reported :]:
                        self._report(SegmentReady(segment))
                self._report_progress(transcript.duration, transcript.duration)
                self.end(RequestFinished(transcript))

    def _add_segment(self, segment: Segment) -> None:
        self._segments.append(segment)
        if len(self._segments) > self._n_reported:
            self._n_reported = len(self._segments)
            self._report(SegmentReady(segment))

    def _report_progress(self, done_s: float, total_s: float) -> None:
        if self.request.wants_progress and done_s >= self._reported_s:
            self._reported_s = done_s
            self._report(Progressed(done_s, total_s))

    def fail(self, error: BaseException) -> None:
        self.end(RequestFailed(error))

    def end_cancelled(self) -> None:
        """Report the end now; the process may still work on it."""
        self.cancelled_s = time.monotonic()
        self.end(RequestFailed(CancelledError()))

    def end(self, event: RequestFinished | RequestFailed) -> None:
        if not self.is_done:
            self._report(event)
            self.is_done = True
            self.on_end(self)

    def _report(self, event: RequestEvent) -> None:
        if self.is_done:
            return
        try:
            self._on_event(event)
        except Exception:
            log.exception("a callback of a request failed: please report it")
