"""The outbox of a realtime connection: order, limits, and messages from another thread."""

from __future__ import annotations

import asyncio
import json
import threading

from choral.server.realtime.outbox import LOW_UNSENT, MAX_UNSENT, MAX_UNSENT_BYTES, CloseConnection, Outbox


class Connection:
    """Counts the callbacks of an outbox."""

    def __init__(self) -> None:
        self.n_taken = self.n_overflows = 0
        self.outbox = Outbox(on_taken=self._taken, on_overflow=self._overflow)

    def _taken(self) -> None:
        self.n_taken += 1

    def _overflow(self) -> None:
        self.n_overflows += 1


def test_messages_of_another_thread_arrive_in_order() -> None:
    async def check() -> None:
        connection = Connection()
        outbox, n_messages = connection.outbox, 1_000

        def put_all() -> None:
            for number in range(n_messages):
                outbox.put({"number": number})
            outbox.put(CloseConnection(1000, "done"))

        thread = threading.Thread(target=put_all)
        thread.start()
        received = [await asyncio.wait_for(outbox.get(), 10) for _ in range(n_messages)]
        assert [json.loads(str(text))["number"] for text in received] == list(range(n_messages))
        assert await outbox.get() == CloseConnection(1000, "done")
        assert (connection.n_taken, connection.n_overflows, outbox.is_low) == (n_messages + 1, 0, True)
        thread.join()

    asyncio.run(check())


def test_unread_messages_are_bounded() -> None:
    async def check() -> None:
        for size, n_allowed in ((0, MAX_UNSENT), (10_000, MAX_UNSENT_BYTES // 10_000)):
            connection = Connection()
            for number in range(n_allowed):
                connection.outbox.put({"text": "x" * size})
                assert connection.outbox.is_low or number + 1 >= LOW_UNSENT or size
            await asyncio.sleep(0)
            assert (connection.n_overflows, connection.outbox.is_low) == (0, False)
            connection.outbox.put({"text": "x" * size})
            connection.outbox.put({"text": "x" * size})
            await asyncio.sleep(0)
            assert connection.n_overflows == 1
            assert connection.outbox.is_low  # what was queued is dropped

    asyncio.run(check())
