"""Watches over the wire: many readers, readers that leave, and a server that ends or is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from flumeng.journal.log.journal import Journal
from flumeng.journal.serving import watch_client
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.server import JournalServer
from flumeng.journal.serving.watch import WatchAnswer, WatchRequest
from flumeng.platform.errors import UnavailableError
from tests.testkit.daemons import of_threads
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import PATIENCE_SECONDS, async_wait_for

ID = "web.n1.0.0a1b2c3d"
OTHER = "web.n1.0.0a1b2c3e"
QUICK = WatchRequest((ID,), heartbeat_seconds=0.2, seconds=30)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.create(tmp_path, ID)
    yield journal
    assert len(journal.listeners) == 0
    journal.close()


@pytest.fixture
def server(journal: Journal) -> Iterator[JournalServer]:
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})
    yield server
    assert server.stop()


def append(journal: Journal) -> None:
    journal.append(numbered_events(journal.next_seq, 10))
    journal.sync()


@contextlib.asynccontextmanager
async def watching(address: str, request: WatchRequest = QUICK) -> AsyncIterator[Any]:
    async with contextlib.aclosing(watch_client.watch(address, request)) as answers:
        yield answers


async def heard(answers: Any) -> WatchAnswer:
    """The next answer that is not empty."""
    async for answer in answers:
        if answer.positions or answer.not_served:
            assert isinstance(answer, WatchAnswer)
            return answer
    raise AssertionError("the watch has ended")


def grpc_threads() -> int:
    return sum(name.startswith("grpcpp_sync") for name in of_threads(os.getpid(), "comm"))


def test_new_position_reaches_the_reader_at_once(journal: Journal, server: JournalServer) -> None:
    async def run() -> list[float]:
        delays = []
        async with watching(server.address) as answers:
            assert (await heard(answers)).positions[ID].safe == 0
            for number in range(1, 11):
                await asyncio.sleep(0.05)
                await asyncio.to_thread(append, journal)
                began = time.monotonic()
                assert (await heard(answers)).positions[ID].safe == 10 * number
                delays.append(time.monotonic() - began)
        return delays

    assert sorted(asyncio.run(run()))[5] < 0.1


def test_watches_beyond_the_limit_get_one_answer_and_cost_no_thread(journal: Journal) -> None:
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal}, watches_at_once=3)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            held = [await stack.enter_async_context(watching(server.address)) for _ in range(3)]
            for answers in held:
                await heard(answers)
            threads = grpc_threads()
            for _ in range(20):
                async with watching(server.address) as answers:
                    assert len([answer async for answer in answers]) == 1
            assert grpc_threads() <= threads + 10, "gRPC has a few more under load, not one each"
            await asyncio.to_thread(append, journal)
            for answers in held:
                assert (await heard(answers)).positions[ID].safe == 10

    asyncio.run(run())
    assert server.stop()


def test_reader_that_leaves_frees_its_watch(journal: Journal, server: JournalServer) -> None:
    async def run() -> None:
        for _ in range(10):
            async with watching(server.address) as answers:
                await heard(answers)
        await async_wait_for(lambda: not len(journal.listeners))

    asyncio.run(run())


def test_server_that_stops_ends_its_watches_at_once(journal: Journal) -> None:
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})

    async def run() -> None:
        async with watching(server.address, WatchRequest((ID,), heartbeat_seconds=60)) as answers:
            await heard(answers)
            assert await asyncio.to_thread(server.stop)
            with contextlib.suppress(UnavailableError):
                assert [answer async for answer in answers if answer.positions] == []

    asyncio.run(run())


def test_silent_or_missing_server_is_unavailable_in_time() -> None:
    async def run(address: str) -> None:
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            async with watching(address) as answers:
                await heard(answers)
        assert time.monotonic() - began < PATIENCE_SECONDS

    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        asyncio.run(run(address))
    asyncio.run(run(address))


class OlderServer(flight.FlightServerBase):  # type: ignore[misc]
    """A server without watches, as older versions are."""

    def do_action(self, _context: Any, action: Any) -> Any:
        if action.type != "positions":
            raise flight.FlightServerError(
                f"there is no action {action.type!r}, only positions, accounts, counters"
            )
        told = b'{"%s": {"term": 1, "floor": 0, "safe": 7, "closed": false, "held": 0}}'
        return iter([flight.Result(told % ID.encode())])


def test_server_without_watches_is_polled_for_positions() -> None:
    async def run(address: str) -> list[WatchAnswer]:
        async with watching(address, WatchRequest((ID, OTHER))) as answers:
            return [answer async for answer in answers]

    with OlderServer("grpc://127.0.0.1:0") as older:
        (answer,) = asyncio.run(run(f"127.0.0.1:{older.port}"))
    assert (answer.positions[ID].safe, answer.not_served) == (7, (OTHER,))


def test_reads_beyond_the_limit_are_refused_as_unavailable(journal: Journal) -> None:
    append(journal)
    entered, leave = threading.Semaphore(0), threading.Event()

    class Slow:
        """Serves the journal; each read waits for its release."""

        def __getattr__(self, name: str) -> Any:
            return getattr(journal, name)

        def read_frames(self, start: int, end: int) -> Iterator[Any]:
            entered.release()
            assert leave.wait(PATIENCE_SECONDS)
            yield from journal.read_frames(start, end)

    slow: Any = Slow()
    server = JournalServer("127.0.0.1", journals=lambda: {ID: slow}, reads_at_once=2)

    def read() -> int:
        with JournalClient(server.address) as client:
            return sum(batch.num_rows for batch in client.read(ID, 0, 10))

    async def run() -> None:
        reads = [asyncio.create_task(asyncio.to_thread(read)) for _ in range(2)]
        for _ in reads:
            assert await asyncio.to_thread(entered.acquire, timeout=PATIENCE_SECONDS)
        with pytest.raises(UnavailableError, match="2 reads run here already"):
            await asyncio.to_thread(read)
        leave.set()
        assert await asyncio.gather(*reads) == [10, 10]
        assert await asyncio.to_thread(read) == 10

    asyncio.run(run())
    assert server.stop()


def test_hanging_reads_do_not_keep_others_out(journal: Journal) -> None:
    """They cannot be ended, when a reader is frozen or a disk hangs."""
    append(journal)
    entered, leave = threading.Semaphore(0), threading.Event()

    class Hanging:
        """Serves the journal; the first read hangs."""

        reads = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(journal, name)

        def read_frames(self, start: int, end: int) -> Iterator[Any]:
            self.reads += 1
            if self.reads == 1:
                entered.release()
                assert leave.wait(PATIENCE_SECONDS)
            yield from journal.read_frames(start, end)

    hanging: Any = Hanging()
    server = JournalServer(
        "127.0.0.1", journals=lambda: {ID: hanging}, reads_at_once=1, still_seconds=1.0
    )

    def read() -> int:
        with JournalClient(server.address) as client:
            return sum(batch.num_rows for batch in client.read(ID, 0, 10))

    first = threading.Thread(target=read)
    first.start()
    assert entered.acquire(timeout=PATIENCE_SECONDS)
    with pytest.raises(UnavailableError, match="1 reads run here already"):
        read()
    time.sleep(1.0)
    assert read() == 10
    leave.set()
    first.join()
    assert server.stop()
