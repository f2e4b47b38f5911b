"""Work that its client's disconnect cancels; every other end of it is its own."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from choral.server.disconnect import ClientClosedRequest, cancel_on_disconnect


class Client:
    """Disconnects when told to."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()

    async def receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}


def test_work_ends_with_its_client_or_by_itself() -> None:
    async def run() -> None:
        client, is_cancelled = Client(), asyncio.Event()

        async def work() -> None:
            try:
                client.leaves.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                is_cancelled.set()
                raise

        with pytest.raises(ClientClosedRequest):
            await cancel_on_disconnect({}, client.receive, work())
        assert is_cancelled.is_set()
        assert await cancel_on_disconnect({}, Client().receive, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(TimeoutError):
            await cancel_on_disconnect({}, Client().receive, asyncio.wait_for(asyncio.sleep(60), 0.01))
        task = asyncio.create_task(cancel_on_disconnect({}, Client().receive, asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_client_that_leaves_as_the_work_ends() -> None:
    async def run() -> None:
        client, errors = Client(), []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))

        async def work() -> str:
            client.leaves.set()
            await asyncio.sleep(0)  # the disconnect is noticed now
            return "done"

        assert await cancel_on_disconnect({}, client.receive, work()) == "done"
        await asyncio.sleep(0.01)
        assert errors == []

    asyncio.run(run())
