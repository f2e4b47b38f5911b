"""Batches of jobs: when they close, and the line that is logged."""

from __future__ import annotations

import asyncio
import logging

import pytest

from choral.jobs.active_job import ActiveJob
from choral.jobs.batches import BatchFormer
from choral.jobs.metrics import WorkerMetrics
from test_record import request_of


def prepared_job() -> ActiveJob:
    return ActiveJob(request_of(), b"", 1, 0.0, fetch_s=0.5, decode_s=0.25)


def test_a_batch_closes_when_it_is_full_or_its_wait_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "choral.jobs")

    async def run() -> None:
        batches = BatchFormer(3, 0.2, WorkerMetrics())
        first = batches.join(prepared_job())
        assert batches.join(prepared_job()) is batches.join(prepared_job()) is first  # the third job fills it
        late = batches.join(prepared_job())
        assert late is not first
        late.leave(has_succeeded=False)
        assert not late.is_closed
        await asyncio.sleep(0.3)
        assert late.is_closed
        first.enter_engine()
        for _ in range(3):
            first.leave(has_succeeded=True)

    asyncio.run(run())
    assert caplog.messages == [
        "batch 2: size 1, prep 0.75 s, engine 0.00 s, succeeded 0",
        "batch 1: size 3, prep 0.75 s, engine 0.00 s, succeeded 3",
    ]
