"""Orders of a node to its ingest worker take effect in the order in which they were given."""

from __future__ import annotations

import asyncio
import threading

from flumeng.agent.ingest.worker import OrderedWork
from flumeng.platform.errors import UnavailableError


def test_ordered_work_waits_for_slow_jobs_and_continues_after_failures() -> None:
    async def test() -> None:
        done = asyncio.Semaphore(0)
        work = OrderedWork(done.release)
        slow_may_end = threading.Event()
        order: list[str] = []

        def slow() -> None:
            slow_may_end.wait(60)
            order.append("slow")

        def failing() -> None:
            order.append("failing")
            raise UnavailableError("the disk is away")

        work.do(slow)
        work.do(failing)
        work.do(order.append, "last")
        await asyncio.sleep(0.1)
        assert order == []
        slow_may_end.set()
        for _ in range(3):
            async with asyncio.timeout(60):
                await done.acquire()
        assert order == ["slow", "failing", "last"]

    asyncio.run(test())
