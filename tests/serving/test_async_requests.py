"""Events of requests in an event loop: one wake-up for many of them, a few in each step, and what ends a request."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from itertools import pairwise
from typing import Any

import pytest

from choral.options import TranscribeOptions
from choral.serving.async_requests import MAX_EVENTS_PER_STEP, AsyncRequests
from choral.serving.request_events import (
    OnEvent,
    Progressed,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    TranscribeRequest,
)
from choral.transcript import Transcript

N_EVENTS = 1_000
TRANSCRIPT = Transcript("text", (), "en", None, 1.0)
REQUEST = TranscribeRequest(audio="a.wav", options=TranscribeOptions())


class Reporter:
    """Reports the given events from another thread, before the loop can look at the first of them."""

    def __init__(self, *events: RequestEvent) -> None:
        self._events = events
        self.n_cancels = 0

    def start(self, request: TranscribeRequest, on_event: OnEvent) -> Reporter:
        thread = threading.Thread(target=lambda: [on_event(event) for event in self._events])
        thread.start()
        thread.join()
        return self

    def cancel(self) -> None:
        self.n_cancels += 1


def test_all_events_that_wait_take_one_wake_up() -> None:
    progress = [Progressed(float(number), N_EVENTS) for number in range(N_EVENTS)]
    reporter = Reporter(*progress, RequestFinished(TRANSCRIPT))
    told: list[Any] = []
    n_wake_ups = 0

    async def run() -> Transcript:
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def count(*arguments: Any, **named: Any) -> Any:
            nonlocal n_wake_ups
            n_wake_ups += 1
            return original(*arguments, **named)

        loop.call_soon_threadsafe = count  # type: ignore[method-assign]
        return await AsyncRequests(reporter).transcribe(REQUEST, told.append)

    assert asyncio.run(run()) is TRANSCRIPT
    assert told == progress
    assert (n_wake_ups, reporter.n_cancels) == (1, 0)


def test_an_exception_in_the_callback_cancels_the_request() -> None:
    reporter = Reporter(Progressed(0.0, 1.0), RequestFinished(TRANSCRIPT))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(AsyncRequests(reporter).transcribe(REQUEST, lambda event: 1 // 0))
    assert reporter.n_cancels == 1


def test_cancellation_in_both_directions() -> None:
    async def run() -> None:
        silent = Reporter()
        task = asyncio.create_task(AsyncRequests(silent).transcribe(REQUEST, print))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert silent.n_cancels == 1
        with pytest.raises(asyncio.CancelledError):  # its process was closed
            await AsyncRequests(Reporter(RequestFailed(CancelledError()))).transcribe(REQUEST, print)

    asyncio.run(run())


def test_requests_that_end_together_leave_turns_to_others() -> None:
    async def run() -> None:
        requests = AsyncRequests(Reporter(RequestFinished(TRANSCRIPT)))
        tasks = [asyncio.create_task(requests.transcribe(REQUEST, print)) for _ in range(100)]
        n_done = [0]
        while n_done[-1] < len(tasks):
            await asyncio.sleep(0)
            n_done.append(sum(task.done() for task in tasks))
        assert max(after - before for before, after in pairwise(n_done)) <= MAX_EVENTS_PER_STEP

    asyncio.run(run())
