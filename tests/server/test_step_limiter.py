"""A burst of tasks continues a few at a time, in order, and none is lost."""

from __future__ import annotations

import asyncio

from choral.server.step_limiter import StepLimiter


def test_burst_is_spread_over_steps() -> None:
    async def run() -> None:
        limiter, passed = StepLimiter(4), []
        steps: list[int] = []

        async def pass_limiter(number: int) -> None:
            await limiter.wait()
            passed.append(number)

        tasks = [asyncio.create_task(pass_limiter(number)) for number in range(50)]
        await asyncio.sleep(0)
        tasks[10].cancel()
        while len(passed) < 49:
            before = len(passed)
            await asyncio.sleep(0)
            steps.append(len(passed) - before)
        assert passed == [number for number in range(50) if number != 10]
        assert max(steps) <= 4
        await asyncio.sleep(0)
        await asyncio.wait_for(limiter.wait(), 1)  # after a pause it starts again

    asyncio.run(run())
