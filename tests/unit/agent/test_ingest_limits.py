"""Limits of senders at a worker, on loopback sockets: connections, time, memory, a rate."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from flumeng.agent.ingest.flow import FlowRunner
from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.process import allow_many_files
from flumeng.agent.ingest.source_runner import PortClaims
from flumeng.agent.ingest.worker_group import WorkerGroup
from flumeng.agent.node.protocol import Assignment
from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.connectors.api.source import Source, SourceContext
from flumeng.connectors.network import streams as streams_module
from flumeng.connectors.network.options import Tcp, Udp
from flumeng.connectors.network.sockets import TcpSource, UdpSource
from flumeng.platform.errors import UserError
from flumeng.platform.rate_limit import BURST_SECONDS, RateLimit
from tests.testkit.waiting import PATIENCE_SECONDS, async_wait_for


class Received:
    """Takes the blocks of a source."""

    def __init__(self) -> None:
        self.blocks: list[ReceivedBlock] = []
        self.context = SourceContext("me", {}, self.blocks.append, lambda _: None, lambda: None)

    @property
    def data(self) -> bytes:
        return b"".join(block.data for block in self.blocks)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(test())


@asynccontextmanager
async def listening(make: type[Source], options: Any, received: Received) -> AsyncIterator[int]:
    source = make(options, received.context)
    try:
        await source.start()
        yield int(source.addresses[0].rpartition(":")[2])
    finally:
        await source.stop()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), PATIENCE_SECONDS) == b""
    except ConnectionError:
        return True


def test_connections_over_their_number_are_closed_and_counted() -> None:
    async def test() -> None:
        received = Received()
        options = Tcp("127.0.0.1:0", max_connections=2)
        async with listening(TcpSource, options, received) as port, AsyncExitStack() as stack:
            served = [await stack.enter_async_context(connected(port)) for _ in range(2)]
            for _ in range(3):
                async with connected(port) as (refused, writer):
                    writer.write(b"refused\n")
                    assert await is_closed(refused)
            assert received.context.counters.refused == 3
            served[0][1].write(b"served\n")
            served[1][1].write(b"last")
            await async_wait_for(lambda: received.data == b"served\n")
            served[1][1].close()
            await async_wait_for(lambda: received.data == b"served\nlast\n")
            async with connected(port) as (_, writer):
                writer.write(b"next\n")
                await async_wait_for(lambda: received.data == b"served\nlast\nnext\n")
        assert received.context.counters.refused == 3

    run(test)


@pytest.mark.slow
def test_idle_connection_is_closed_after_its_unfinished_line_is_taken() -> None:
    """A sender that sends a byte now and then stays connected, however slow it is."""

    async def test() -> None:
        received = Received()
        options = Tcp("127.0.0.1:0", idle_seconds=1.5)
        async with (
            listening(TcpSource, options, received) as port,
            connected(port) as (idle, begun),
            connected(port) as (_, slow),
        ):
            begun.write(b"begun")
            for letter in b"slow":
                slow.write(bytes([letter]))
                await asyncio.sleep(0.5)
            slow.write(b"\n")
            assert await is_closed(idle)
            await async_wait_for(lambda: len(received.blocks) == 2)
            assert received.data == b"begun\nslow\n"
            assert received.context.counters.idle == 1

    run(test)


@pytest.mark.slow
def test_connection_does_not_become_idle_while_its_source_is_paused() -> None:
    async def test() -> None:
        received = Received()
        source = TcpSource(Tcp("127.0.0.1:0", idle_seconds=1.0), received.context)
        await source.start()
        async with connected(int(source.addresses[0].rpartition(":")[2])) as (_, writer):
            writer.write(b"1\n")
            await async_wait_for(lambda: received.data == b"1\n")
            source.pause()
            writer.write(b"2\n")
            await asyncio.sleep(1.5)
            assert received.data == b"1\n"
            source.resume()
            await async_wait_for(lambda: received.data == b"1\n2\n")
            assert received.context.counters.idle == 0
        await source.stop()

    run(test)


@pytest.mark.slow
def test_unfinished_messages_of_all_senders_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The greediest one goes; one with a short message is served."""
    monkeypatch.setattr(streams_module, "HELD_BYTES", 100_000)

    async def test() -> None:
        received = Received()
        async with (
            listening(TcpSource, Tcp("127.0.0.1:0"), received) as port,
            connected(port) as (_, modest),
            AsyncExitStack() as stack,
        ):
            modest.write(b"hel")
            greedy = [await stack.enter_async_context(connected(port)) for _ in range(4)]
            for number, (_, writer) in enumerate(greedy):
                writer.write(b"x" * (30_000 + number))
                await asyncio.sleep(0.05)
            assert await is_closed(greedy[3][0])
            assert received.context.counters.overfull == 1
            for _, writer in greedy[:3]:
                writer.write(b"\n")
            modest.write(b"lo\n")
            await async_wait_for(lambda: len(received.blocks) == 4)
            assert len(received.data) == sum((30_001, 30_002, 30_003, 6))
            greedy[0][1].write(b"y" * 70_000)
            await asyncio.sleep(0.05)
            assert received.context.counters.overfull == 1, "what was finished is not held"

    run(test)


def test_memory_of_an_unfinished_message_is_released_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams_module, "HELD_BYTES", 100_000)

    async def test() -> None:
        received = Received()
        source = TcpSource(Tcp("127.0.0.1:0"), received.context)
        await source.start()
        port = int(source.addresses[0].rpartition(":")[2])

        async def leave_unfinished(received_bytes: int) -> None:
            async with connected(port) as (_, writer):
                writer.write(b"x" * 60_000)
            await async_wait_for(lambda: len(received.data) == received_bytes)

        for number in range(1, 6):
            await leave_unfinished(number * 60_001)
        assert received.context.counters.overfull == 0
        await source.stop()

    run(test)


def test_datagrams_that_the_kernel_drops_are_counted() -> None:
    async def test() -> None:
        received = Received()
        source = UdpSource(Udp("127.0.0.1:0"), received.context)
        await source.start()
        source.pause()
        port = int(source.addresses[0].rpartition(":")[2])
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            for _ in range(6_000):
                sender.sendto(b"x" * 8_000, ("127.0.0.1", port))
        source.resume()
        await async_wait_for(
            lambda: len(received.data) // 8_000 + received.context.counters.dropped == 6_000
        )
        assert received.context.counters.dropped > 0
        before = received.context.counters.dropped
        await source.stop()
        assert received.context.counters.dropped == before

    run(test)


def test_malformed_datagram_is_counted() -> None:
    async def test() -> None:
        received = Received()
        source = UdpSource(
            Udp("127.0.0.1:0", framing="length-prefixed", max_line_bytes=64), received.context
        )
        await source.start()
        place = ("127.0.0.1", int(source.addresses[0].rpartition(":")[2]))
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            for datagram in (b"GET / HTTP/1.1", b"\0\0\0\1a\0\0", b"\0\0\0\x64" + b"x" * 100):
                sender.sendto(datagram, place)
        await async_wait_for(lambda: len(received.blocks) == 2)
        counters = received.context.counters
        assert (counters.malformed, counters.discarded_bytes) == (1, 14 + 2 + 33)
        await source.stop()

    run(test)


def waits(choke: RateLimit, takes: Sequence[tuple[float, int]]) -> list[float]:
    return [round(choke.take(nbytes, now), 6) for now, nbytes in takes]


def test_choke_lets_through_its_rate_over_time() -> None:
    """A block is always taken whole, and its price is waited for afterwards."""
    assert waits(RateLimit(1000, 0.0), [(0.0, 500), (0.5, 250), (0.75, 0)]) == [0.5, 0.25, 0.0]
    choke, now, taken = RateLimit(1000, 0.0), 0.0, 0
    while now < 100:
        taken += 700
        now += choke.take(700, now)
    assert taken / now == pytest.approx(1000, rel=0.02)


def test_choke_allows_only_a_small_burst_after_a_pause() -> None:
    choke = RateLimit(1000, 0.0)
    burst = int(1000 * BURST_SECONDS)
    assert waits(choke, [(3600.0, burst), (3600.0, 1000)]) == [0.0, 1.0]


class Flow:
    """A flow with a tcp source, over a journal store of its own."""

    def __init__(self, data: Path, group: WorkerGroup, listen: str = "127.0.0.1:0") -> None:
        spec = f'flow: f\nsources: [{{tcp: {{listen: "{listen}"}}}}]\nsinks: [noop]\n'
        self.journal_store = JournalStore(data, "n", group)
        self.runner = FlowRunner(
            Assignment("f", "0", 1, 1, spec), self.journal_store, "n", lambda: None, group=group
        )

    @property
    def state(self) -> dict[str, Any]:
        return self.runner.status.get("f/0", {"state": "starting", "listen": []})

    def bytes(self) -> int:
        return sum(counters.bytes for _, counters, _ in self.runner.counters)

    async def end(self) -> None:
        self.runner.want(None)
        await asyncio.wait_for(self.runner.finished, PATIENCE_SECONDS)
        self.journal_store.close()


async def send(listen: str, data: bytes) -> asyncio.Task[None]:
    """Keeps sending in the background."""

    async def run() -> None:
        _, writer = await asyncio.open_connection(*listen.rsplit(":", 1))
        while True:
            writer.write(data)
            await writer.drain()

    return asyncio.create_task(run())


async def passes(flow: Flow, least: float, most: float) -> None:
    """Require the rate; a busy machine may take less for a while, but never more."""
    deadline, rate = time.monotonic() + PATIENCE_SECONDS, 0.0
    while rate < least:
        assert time.monotonic() < deadline, f"{rate} bytes per second"
        began, before = time.monotonic(), flow.bytes()
        await asyncio.sleep(0.9)
        rate = (flow.bytes() - before) / (time.monotonic() - began)
        assert rate < most


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_node_rate_limit_slows_senders_and_changes_while_they_send(
    tmp_path: Path, workers: int
) -> None:
    """Each worker has its part of the node's rate."""

    async def test() -> None:
        flow = Flow(tmp_path, WorkerGroup(0, workers))
        flow.runner.limit(8e6 * workers)
        await async_wait_for(lambda: flow.state["state"] == "running")
        sending = await send(flow.state["listen"][0], b"x" * 999 + b"\n")
        for rate in (8e6, 2e6):
            flow.runner.limit(rate * workers)
            await asyncio.sleep(0.5)
            await passes(flow, 0.6 * rate, 1.5 * rate)
        flow.runner.limit(None)
        taken = flow.bytes()
        await async_wait_for(lambda: flow.bytes() > taken + 30e6)
        sending.cancel()
        await flow.end()

    run(test)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_workers_share_an_address_and_others_may_not_have_it(tmp_path: Path, name: str) -> None:
    """By none of its names."""

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            listen = f"{name}:{free.getsockname()[1]}"
        pair = [Flow(tmp_path, WorkerGroup(number, 2), listen) for number in range(2)]
        await async_wait_for(lambda: all(flow.state["state"] == "running" for flow in pair))
        other = Flow(tmp_path / "other", WorkerGroup(0, 2), pair[0].state["listen"][0])
        await async_wait_for(lambda: other.state["state"] == "failed")
        assert "another source has the port" in other.state["error"]
        for _ in range(64):
            _, writer = await asyncio.open_connection(*listen.rsplit(":", 1))
            writer.write(b"x\n")
            writer.close()
        await async_wait_for(lambda: sum(flow.bytes() for flow in pair) == 128)
        assert all(flow.bytes() > 0 for flow in pair)
        for flow in (*pair, other):
            await flow.end()

    run(test)


def test_port_claim_ends_with_its_holder() -> None:
    async def test() -> None:
        first, second = PortClaims(0), PortClaims(0)
        options = Tcp("127.0.0.1:1")
        await first.take(options)
        with pytest.raises(UserError, match=r"cannot listen on tcp 127\.0\.0\.1:1"):
            await second.take(options)
        await PortClaims(1).take(options)
        second.release()
        first.release()
        await second.take(options)
        second.release()

    run(test)


def test_paused_udp_socket_is_not_read() -> None:
    """Also when the last submitted datagram caused the pressure."""

    async def test() -> None:
        received = Received()
        source = UdpSource(Udp("127.0.0.1:0"), received.context)

        def submit(block: ReceivedBlock) -> None:
            received.blocks.append(block)
            if len(received.blocks) == 2:
                source.pause()

        object.__setattr__(received.context, "submit", submit)
        await source.start()
        place = ("127.0.0.1", int(source.addresses[0].rpartition(":")[2]))
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            for expected in (b"a", b"ab"):
                sender.sendto(expected[-1:], place)
                await async_wait_for(lambda: received.data == expected)  # noqa: B023  awaited at once
            sender.sendto(b"c", place)
            await asyncio.sleep(0.05)
            assert received.data == b"ab"
            source.resume()
            await async_wait_for(lambda: received.data == b"abc")
            sender.sendto(b"d", place)
            sender.sendto(b"e", place)
            await async_wait_for(lambda: received.data == b"abcde")
        await source.stop()

    run(test)


@pytest.mark.parametrize(("limit", "connections"), [(512, 384), (4096, 3840)])
def test_low_limit_of_open_files_is_reported_with_the_connections_that_it_leaves(
    limit: int, connections: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    allow_many_files()
    assert f"limited to {limit}, and connections to fewer than {connections}:" in caplog.text
