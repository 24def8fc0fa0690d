"""The syslog source on loopback sockets: pressure, ends of connections, addresses that fail."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from flumeng.agent.ingest import batch
from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.connectors.api.source import SourceContext
from flumeng.connectors.network.options import Syslog
from flumeng.connectors.network.sockets import SyslogSource
from flumeng.platform.errors import UserError
from tests.testkit.waiting import async_wait_for


class Sink:
    """Takes the blocks of a source."""

    def __init__(self) -> None:
        self.blocks: list[ReceivedBlock] = []
        self.failures: list[Exception] = []
        self.context = SourceContext(
            "me", {}, self.blocks.append, self.failures.append, lambda: None
        )

    def events(self) -> list[dict[str, Any]]:
        return [
            event
            for frame, _ in batch.build(self.blocks, lambda _: None)
            for event in frame.to_pylist()
        ]

    def bodies(self) -> list[bytes]:
        return [event["body"] for event in self.events()]

    async def wait_for(self, bodies: list[bytes]) -> None:
        await async_wait_for(lambda: len(self.bodies()) >= len(bodies))
        assert self.bodies() == bodies


@asynccontextmanager
async def listening(sink: Sink, **options: Any) -> AsyncIterator[tuple[SyslogSource, int]]:
    source = SyslogSource(Syslog(**{"listen": "127.0.0.1:0", **options}), sink.context)
    try:
        await source.start()
        yield source, int(source.addresses[0].rpartition(":")[2])
    finally:
        await source.stop()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(test())


def test_interleaved_connections_do_not_mix_their_bytes() -> None:
    """They share one receive buffer; each keeps its own unfinished line."""

    async def test() -> None:
        sink = Sink()
        async with listening(sink) as (_, port):
            senders = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
            for part in range(5):
                for number, (_, writer) in enumerate(senders):
                    writer.write(b"%d-%d;" % (number, part) * (number + 1))
                    await writer.drain()
                await asyncio.sleep(0.01)
            for _, writer in senders:
                writer.write(b"\n")
                writer.close()
            expected = [
                b"".join(b"%d-%d;" % (number, part) * (number + 1) for part in range(5))
                for number in range(8)
            ]
            await async_wait_for(lambda: len(sink.bodies()) == 8)
            assert sorted(sink.bodies()) == sorted(expected)
            by_peer = {dict(event["attrs"])["peer"] for event in sink.events()}
            assert len(by_peer) == 8

    run(test)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_paused_source_reads_nothing_until_it_resumes(protocol: str) -> None:
    """Then a TCP sender waits, also one that connects meanwhile, and nothing that it sends is
    lost."""

    async def test() -> None:
        sink = Sink()
        kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
        async with listening(sink, protocol=protocol) as (source, port):
            with socket.socket(type=kind) as sender, socket.socket(type=kind) as late:
                sender.connect(("127.0.0.1", port))
                sender.sendall(b"one\n")
                await sink.wait_for([b"one"])
                source.pause()
                source.pause()
                late.connect(("127.0.0.1", port))
                for line in (b"two\n", b"three\n"):
                    for connection in (sender, late):
                        connection.sendall(line)
                    await asyncio.sleep(0.05)
                assert sink.bodies() == [b"one"]
                source.resume()
                await async_wait_for(lambda: len(sink.bodies()) == 5)
                assert sorted(sink.bodies()) == sorted([b"one", *[b"two", b"three"] * 2])

    run(test)


def test_half_a_line_of_a_broken_connection_is_not_taken() -> None:
    """Its sender knows that the connection broke, and sends the line again."""

    async def test() -> None:
        sink = Sink()
        async with listening(sink) as (source, port):
            with socket.create_connection(("127.0.0.1", port)) as broken:
                broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                broken.sendall(b"whole\nhalf")
                await sink.wait_for([b"whole"])
            _, ours = await asyncio.open_connection("127.0.0.1", port)
            ours.write(b"whole too\nhalf")
            await sink.wait_for([b"whole", b"whole too"])
            await source.stop()
        assert sink.bodies() == [b"whole", b"whole too"]

    run(test)


def test_a_counted_message_cut_off_by_the_end_is_marked_truncated() -> None:
    async def test() -> None:
        sink = Sink()
        async with listening(sink) as (_, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"5 hello9 cut")
            writer.close()
            await sink.wait_for([b"hello", b"cut"])
            marks = [dict(event["attrs"]).get("truncated") for event in sink.events()]
            assert marks == [None, "true"]

    run(test)


def test_malformed_connections_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """All are counted; a check of a load balancer may be one every few seconds."""

    async def test() -> None:
        sink = Sink()
        async with listening(sink, framing="octet-counted") as (_, port):
            for _ in range(3):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.0\n")
                writer.close()
            await async_wait_for(lambda: sink.context.counters.malformed == 3)

    run(test)
    assert caplog.text.count("sent an invalid octet count") == 1


def test_ipv6_address_is_listened_on_and_recorded() -> None:
    async def test() -> None:
        sink = Sink()
        async with listening(sink, listen="[::1]:0") as (source, port):
            assert source.addresses == (f"[::1]:{port}",)
            _, writer = await asyncio.open_connection("::1", port)
            writer.write(b"x\n")
            await sink.wait_for([b"x"])
            (event,) = sink.events()
            assert event["host"] == "::1"
            assert dict(event["attrs"])["peer"].startswith("[::1]:")
            writer.close()

    run(test)


@pytest.mark.parametrize(
    ("listen", "protocol", "reason"),
    [
        ("192.0.2.1:5514", "tcp", "this host does not have that address"),
        ("192.0.2.1:5514", "udp", "this host does not have that address"),
        ("no-such-host.invalid:5514", "tcp", ""),
    ],
)
def test_unavailable_address_is_reported_in_one_sentence(
    listen: str, protocol: str, reason: str
) -> None:
    async def test() -> None:
        with pytest.raises(UserError) as caught:
            async with listening(Sink(), listen=listen, protocol=protocol):
                pass
        assert str(caught.value).startswith(f"cannot listen on {listen} ({protocol}): {reason}")
        assert "\n" not in str(caught.value)

    run(test)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_stop_reads_the_bytes_that_the_kernel_has_taken_already(protocol: str) -> None:
    """The event loop does not run between the sending and the stop."""

    async def test() -> None:
        sink = Sink()
        kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
        async with listening(sink, protocol=protocol) as (source, port):
            with socket.socket(type=kind) as sender, socket.socket(type=kind) as not_accepted:
                sender.connect(("127.0.0.1", port))
                sender.sendall(b"first\n")
                await sink.wait_for([b"first"])
                not_accepted.connect(("127.0.0.1", port))
                for number in range(50):
                    sender.sendall(b"%d\n" % number)
                    not_accepted.sendall(b"%d\n" % number)
                await source.stop()
        assert sorted(sink.bodies()) == sorted([b"first", *[b"%d" % n for n in range(50)] * 2])

    run(test)
