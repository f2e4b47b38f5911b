"""Batches of jobs: when they close, which jobs wait for them, and the line that is logged."""

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


def test_only_micro_batch_jobs_wait_for_their_batch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "choral.jobs")

    async def enters_at_once(is_micro_batch: bool) -> bool:
        batches = BatchFormer(3, 0.2, WorkerMetrics(), is_micro_batch=is_micro_batch)
        first = batches.join(prepared_job())
        waiting = asyncio.create_task(batches.wait_for(first))
        await asyncio.sleep(0.05)
        is_ready = waiting.done()
        assert batches.join(prepared_job()) is batches.join(prepared_job()) is first  # the third job fills it
        await waiting
        late = batches.join(prepared_job())
        assert late is not first
        late.leave(has_succeeded=False)
        await asyncio.wait_for(batches.wait_for(late), 1.0)  # it closes after 0.2 s with one job
        await asyncio.sleep(0.25)
        first.enter_engine()
        for _ in range(3):
            first.leave(has_succeeded=True)
        return is_ready

    assert not asyncio.run(enters_at_once(is_micro_batch=True))
    assert asyncio.run(enters_at_once(is_micro_batch=False))
    assert caplog.messages[:2] == [
        "batch 2: size 1, prep 0.75 s, engine 0.00 s, succeeded 0",
        "batch 1: size 3, prep 0.75 s, engine 0.00 s, succeeded 3",
    ]
