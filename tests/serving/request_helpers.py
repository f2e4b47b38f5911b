"""Helpers for tests of the request pool: collect events, wait for conditions, look at processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from choral.options import TranscribeOptions
from choral.serving.request_events import (
    AudioOpened,
    Progressed,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    SegmentReady,
    TranscribeRequest,
)
from choral.transcript import Segment, Transcript


class Followed:
    """A request that was started, and its events so far."""

    def __init__(self, pool: Any, audio: Any, options: TranscribeOptions | None = None, **fields: Any) -> None:
        self.events: list[RequestEvent] = []
        self._ended = threading.Event()
        request = TranscribeRequest(audio=audio, options=options or TranscribeOptions(), **fields)
        self._handle = pool.start(request, self._add)

    def _add(self, event: RequestEvent) -> None:
        assert not self._ended.is_set(), "nothing may follow the last event"
        self.events.append(event)
        if isinstance(event, RequestFinished | RequestFailed):
            self._ended.set()

    def result(self, timeout_s: float = 60) -> Transcript:
        assert self._ended.wait(timeout_s), f"it did not end in time: {self.events}"
        end = self.events[-1]
        if isinstance(end, RequestFailed):
            raise end.error
        assert isinstance(end, RequestFinished)
        return end.transcript

    def cancel(self) -> None:
        self._handle.cancel()

    @property
    def is_done(self) -> bool:
        return self._ended.is_set()

    @property
    def segments(self) -> list[Segment]:
        return [event.segment for event in self.events if isinstance(event, SegmentReady)]

    @property
    def progress(self) -> list[tuple[float, float]]:
        return [(event.done_s, event.total_s) for event in self.events if isinstance(event, Progressed)]

    @property
    def opened(self) -> list[AudioOpened]:
        return [event for event in self.events if isinstance(event, AudioOpened)]


def wait_until(condition: Callable[[], bool], limit_s: float = 20) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Of all its threads."""
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def shape_of(transcript: Transcript) -> list[Any]:
    """All of a transcript but its scores."""
    segments = [(each.id, each.start, each.end, each.text, each.tokens) for each in transcript.segments]
    return [transcript.text, segments, transcript.language, transcript.duration, transcript.warnings]
