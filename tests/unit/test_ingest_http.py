"""The HTTP source on loopback sockets: what it answers, and that no sender can hold it up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from flumeng.ingest import batch, http, http_app, http_body
from flumeng.ingest.framing import Messages
from flumeng.ingest.http import HttpSource
from flumeng.ingest.http_body import RefusedError
from flumeng.ingest.received_block import ReceivedBlock
from flumeng.ingest.source import SourceContext
from flumeng.journal.frame import MAX_ROWS
from flumeng.spec.sources import Http

PATIENCE_SECONDS = 60.0


class Journal:
    """Takes what a source submits; makes it durable at once, or when told."""

    def __init__(self, *, durable: bool = True) -> None:
        self.blocks: list[ReceivedBlock] = []
        self.durable = durable
        self.context = SourceContext("me", {}, self._submit, lambda _: None, lambda: None)

    def _submit(self, block: ReceivedBlock) -> None:
        self.blocks.append(block)
        if self.durable and block.on_durable is not None:
            asyncio.get_running_loop().call_soon(block.on_durable, 0)

    def make_durable(self, end: int = 0) -> None:
        for block in self.blocks:
            if block.on_durable is not None:
                block.on_durable(end)

    def bodies(self) -> list[bytes]:
        return [
            event["body"]
            for frame, _ in batch.build(self.blocks, lambda _: None)
            for event in frame.to_pylist()
        ]


class Client:
    """One connection, on which raw bytes are sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)

    def post(self, body: bytes, *headers: str) -> None:
        lines = ["POST /x HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers, "", ""]
        self.send("\r\n".join(lines).encode(), body)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
            body = await self.reader.readexactly(int(headers["content-length"]))
        is_json = headers["content-type"] == "application/json"
        return int(head[0].split()[1]), headers, json.loads(body) if is_json and body else body

    async def status(self) -> int:
        return (await self.answer())[0]

    async def closed(self) -> None:
        """Wait until the other side has closed; what it said before that does not matter."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65_536):
                    pass


@asynccontextmanager
async def serving(
    journal: Journal, **options: Any
) -> AsyncIterator[tuple[HttpSource, Callable[[], Coroutine[Any, Any, Client]]]]:
    source = HttpSource(Http(**{"listen": "127.0.0.1:0", **options}), journal.context)
    clients: list[Client] = []
    try:
        await source.start()
        port = int(source.addresses[0].rpartition(":")[2])

        async def connect() -> Client:
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            clients.append(client)
            return client

        yield source, connect
    finally:
        await source.stop()
        for client in clients:
            client.writer.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(test())


def test_many_requests_on_one_connection() -> None:
    """One after the other, and some sent before the answer to the one before."""

    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            client = await connect()
            for number in range(3):
                client.post(b"%d" % number)
                assert await client.status() == 200
            for number in range(3, 6):
                client.post(b"%d" % number)
            assert [await client.status() for _ in range(3)] == [200] * 3
            chunked = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.send(chunked, b"2\r\n6\n\r\n", b"1\r\n7\r\n", b"0\r\n\r\n")
            assert await client.status() == 200
            assert journal.bodies() == [b"%d" % number for number in range(8)]

    run(test)


def test_an_answer_waits_for_the_journal() -> None:
    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal) as (_, connect):
            client = await connect()
            client.post(b"x")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.readline(), 0.2)
            journal.make_durable()
            assert await client.status() == 200

    run(test)


async def silent(client: Client) -> None:
    """It is not answered now."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.readline(), 0.2)


def test_ack_received_waits_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """What becomes of it then is no error of somebody who does not wait."""

    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal, ack="received") as (_, connect):
            client = await connect()
            client.post(b"x")
            assert await client.status() == 200
            assert journal.bodies() == [b"x"]
            client.post(b"y")
            assert await client.status() == 200
            taken, unfit = journal.blocks
            assert taken.on_durable is not None
            taken.on_durable(1)
            assert unfit.on_unfit is not None
            unfit.on_unfit("too large")
            journal.blocks.clear()

    run(test)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_ack_delivered_waits_for_the_ack_of_the_last_event() -> None:
    """A request may be several appends: an ack of a part of it answers nobody."""

    async def test() -> None:
        journal = Journal(durable=False)
        deliveries = journal.context.deliveries
        async with serving(journal, ack="delivered") as (_, connect):
            client = await connect()
            client.post(b"a\nb\nc\n")
            await silent(client)
            journal.make_durable(7)
            await silent(client)
            assert deliveries.awaited
            deliveries.acked(6)
            await silent(client)
            deliveries.acked(7)
            assert await client.status() == 200
            client.post(b"d")
            await silent(client)
            journal.make_durable(7)
            assert await client.status() == 200, "it was acked before it was known as durable"

    run(test)


def test_what_is_not_delivered_in_time_is_504_and_lets_the_next_one_in() -> None:
    async def test() -> None:
        journal = Journal(durable=False)
        options = {"ack": "delivered", "ack_timeout_seconds": 0.3}
        async with serving(journal, **options) as (_, connect):
            client = await connect()
            client.post(b"x")
            await silent(client)
            journal.make_durable(1)
            status, _, said = await client.answer()
            assert status == 504
            assert said["error"].startswith(
                "accepted and journaled, but not delivered within 0.3 s"
            )
            assert not journal.context.deliveries.awaited
            client.post(b"y")
            await silent(client)
            journal.make_durable(2)
            journal.context.deliveries.acked(2)
            assert await client.status() == 200

    run(test)


def test_what_waits_for_delivery_is_answered_when_the_source_stops() -> None:
    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal, ack="delivered") as (source, connect):
            client = await connect()
            client.post(b"x")
            await silent(client)
            journal.make_durable(1)
            await silent(client)
            await source.stop()
            status, _, said = await client.answer()
            assert status == 503
            assert "what was sent is journaled" in said["error"]

    run(test)


def test_so_many_wait_for_delivery_and_one_more_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each gives its place back, however its request ends."""
    monkeypatch.setattr(http_app, "_PLACES", threading.BoundedSemaphore(2))

    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal, ack="delivered") as (_, connect):
            waiting = [await connect() for _ in range(2)]
            for client in waiting:
                client.post(b"x")
                await silent(client)
            refused = await connect()
            refused.post(b"x")
            status, headers, _ = await refused.answer()
            assert (status, headers["retry-after"]) == (429, "1")
            assert len(journal.blocks) == 2
            journal.make_durable(2)
            journal.context.deliveries.acked(2)
            assert [await client.status() for client in waiting] == [200, 200]
            bad = "Content-Type: application/json"
            for client in waiting:
                client.post(b"{", bad)
                assert await client.status() == 400
            refused.post(b"x")
            await silent(refused)
            journal.make_durable(3)
            journal.context.deliveries.acked(3)
            assert await refused.status() == 200

    run(test)


def test_under_pressure_senders_are_told_to_come_again() -> None:
    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (source, connect):
            client = await connect()
            source.pause()
            client.post(b"x" * 100_000)
            status, headers, said = await client.answer()
            assert (status, headers["retry-after"]) == (429, "1")
            assert "its journal is behind" in said["error"]
            client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await client.status() == 429
            source.resume()
            client.post(b"x")
            assert await client.status() == 200
            assert journal.bodies() == [b"x"]

    run(test)


def test_what_is_not_durable_when_it_stops_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "SETTLE_SECONDS", 0.1)

    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal) as (source, connect):
            client, half, idle = await connect(), await connect(), await connect()
            client.post(b"x")
            half.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf")
            while not journal.blocks:
                await asyncio.sleep(0.01)
            stopping = asyncio.create_task(source.stop())
            status, headers, said = await client.answer()
            assert (status, headers["retry-after"]) == (503, "1")
            assert "stopping" in said["error"]
            await half.closed()
            await idle.closed()
            await stopping
            with pytest.raises(ConnectionError):
                await connect()

    run(test)


def test_a_journal_that_takes_too_long_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app, "DURABLE_SECONDS", 0.05)

    async def test() -> None:
        async with serving(Journal(durable=False)) as (_, connect):
            client = await connect()
            client.post(b"x")
            assert await client.status() == 503

    run(test)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /health", 200),
        ("HEAD /health", 200),
        ("GET /", 404),
        ("DELETE /", 405),
        ("OPTIONS *", 405),
        ("CONNECT h:80", 400),
    ],
)
def test_other_requests(request_line: str, status: int) -> None:
    async def test() -> None:
        async with serving(Journal()) as (_, connect):
            client = await connect()
            client.send(f"{request_line} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            first = await asyncio.wait_for(client.reader.readline(), PATIENCE_SECONDS)
            assert int(first.split()[1]) == status
            await client.closed()

    run(test)


GOOD = b"POST / HTTP/1.1\r\nHost: h\r\n"
NO_END = b"x" * 65_536


@pytest.mark.parametrize(
    ("beginning", "endless"),
    [
        (b"", b"GET"),
        (b"GET /", NO_END),
        (GOOD + b"X: ", NO_END),
        (GOOD, b"X: y\r\n"),
        (GOOD + b"Transfer-Encoding: chunked\r\n\r\n1;", NO_END),
        (GOOD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", NO_END),
        (GOOD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
        (GOOD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + NO_END + b"\r\n"),
        (GOOD + b"Content-Length: 100000000000\r\n\r\n", NO_END),
        (GOOD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", NO_END),
        (GOOD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", NO_END),
    ],
    ids=lambda part: repr(part[-20:]),
)
def test_whatever_never_ends_is_cut_off(beginning: bytes, endless: bytes) -> None:
    """Good senders are served meanwhile."""

    async def test() -> None:
        journal = Journal()
        async with serving(journal, max_body_bytes=100_000) as (_, connect):
            bad, good = await connect(), await connect()
            bad.send(beginning)
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 100_000_000 and not bad.reader.at_eof():
                    part = endless * max(1, 65_536 // len(endless))
                    bad.send(part)
                    sent += len(part)
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await bad.writer.drain()
                    await asyncio.sleep(0)
            assert sent < 20_000_000
            good.post(b"good")
            assert await good.status() == 200
            assert journal.bodies() == [b"good"]

    run(test)


def test_many_events_in_a_body_fit_into_frames_each() -> None:
    """What comes of many very short ones is many times as large as the body."""
    lines = b"".join(b"%d\n" % (number % 10) for number in range(3 * MAX_ROWS))
    for kind in ("text/plain", "application/x-ndjson"):
        pieces = list(http_body.messages(lines, kind))
        assert [piece.data.count(b"\n") for piece in pieces] == [MAX_ROWS] * 3
        assert b"".join(piece.data for piece in pieces) == lines
    entries = [b'"%d"' % number for number in range(http_body.MOST_ENTRIES)]
    pieces = list(http_body.messages(b"[" + b", ".join(entries) + b"]", "application/json"))
    assert [body for piece in pieces for body in bodies_of(piece)] == entries
    with pytest.raises(RefusedError, match="more than 100000 entries"):
        list(http_body.messages(b"[" + b"1," * 100_000 + b"1]", "application/json"))


def test_half_of_a_surrogate_pair_is_json() -> None:
    lines = b'{"a":"\\ud83d"}\n["\\\\\\udE00x", 1]\n'
    (piece,) = http_body.messages(lines, "application/x-ndjson")
    assert piece.data == lines
    with pytest.raises(RefusedError, match="line 3 is not JSON"):
        list(http_body.messages(lines + b'"\\ud83"\n', "application/x-ndjson"))
    one = b'{"a":"\\ud83d"}'
    assert [p.data for p in http_body.messages(one, "application/json")] == [one]
    entries = [one, b'"\\ud83d\\ude00"', b"1", b'"\\\\ud83d"', b'"\\uDE00"']
    for between in (b",", b" , \n"):
        array = b"[ " + between.join(entries) + b" ]"
        (piece,) = http_body.messages(array, "application/json")
        assert bodies_of(piece) == entries


def bodies_of(piece: Messages) -> list[bytes]:
    assert piece.bounds is not None
    assert len(piece.bounds[0]) <= MAX_ROWS
    return [piece.data[start:end] for start, end in zip(*piece.bounds, strict=True)]


def test_slow_senders_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(http_app, "BODY_SECONDS", 1.0)
    monkeypatch.setattr(http_app, "DRAIN_SECONDS", 0.1)

    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            silent, slow_head, slow_body = await connect(), await connect(), await connect()
            slow_again = await connect()
            slow_again.post(b"first")
            assert await slow_again.status() == 200
            slow_body.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n")

            async def drip(client: Client) -> None:
                while not client.writer.transport.is_closing():
                    client.send(b"P")
                    await asyncio.sleep(0.05)

            drips = [asyncio.create_task(drip(c)) for c in (slow_head, slow_body, slow_again)]
            for client in (silent, slow_head, slow_again):
                await client.closed()
            status, headers, _ = await slow_body.answer()
            assert (status, headers["connection"]) == (408, "close")
            await slow_body.closed()
            await asyncio.gather(*drips)
            assert journal.bodies() == [b"first"]

    run(test)


def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app.BODIES, "most_bytes", 100_000)

    async def test() -> None:
        async with serving(Journal()) as (_, connect):
            holding, one_more = await connect(), await connect()
            holding.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 90001\r\n\r\n")
            holding.send(b"x" * 90_000)

            async def ask_more() -> int:
                one_more.post(b"x" * 20_000)
                return await one_more.status()

            async with asyncio.timeout(PATIENCE_SECONDS):
                while (status := await ask_more()) == 200:
                    await asyncio.sleep(0.01)
            assert status == 429
            holding.send(b"x")
            assert await holding.status() == 200
            one_more.post(b"x" * 20_000)
            assert await one_more.status() == 200

    run(test)


def test_a_large_body_is_parsed_aside_and_holds_up_nobody() -> None:
    """While all threads that parse are taken, small bodies are answered, and the large one then."""

    async def test() -> None:
        free = threading.Event()
        for _ in range(http_app.PARSE_THREADS):
            http_app._parsers().submit(free.wait)
        try:
            async with serving(Journal()) as (_, connect):
                large, packed, small = await connect(), await connect(), await connect()
                large.post(b"1\n" * 200_000, "Content-Type: application/x-ndjson")
                packed.post(gzip.compress(b"x"), "Content-Encoding: gzip")
                for _ in range(3):
                    small.post(b"1\n", "Content-Type: application/x-ndjson")
                    assert await small.status() == 200
                free.set()
                assert [await client.status() for client in (large, packed)] == [200, 200]
        finally:
            free.set()

    run(test)


def test_unpacked_bytes_count_and_are_let_go_when_they_are_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A body of 4 KB that unpacks to 4 MB is one of 4 MB."""
    monkeypatch.setattr(http_app.BODIES, "most_bytes", 6_000_000)
    bomb = gzip.compress(b"x" * 4_000_000)

    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal, max_line_bytes=1 << 24) as (_, connect):
            first, second = await connect(), await connect()
            first.post(bomb, "Content-Encoding: gzip")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not journal.blocks:
                    await asyncio.sleep(0.01)
            assert 4_000_000 <= http_app.BODIES.held_bytes < 4_010_000
            second.post(bomb, "Content-Encoding: gzip")
            status, headers, said = await second.answer()
            assert (status, headers["retry-after"]) == (429, "1")
            assert "too much at once" in said["error"]
            second.post(b"small")
            journal.make_durable()
            assert await first.status() == 200
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(journal.blocks) < 2:
                    await asyncio.sleep(0.01)
            journal.make_durable()
            assert await second.status() == 200
            assert http_app.BODIES.held_bytes == 0

    run(test)


def test_what_can_never_be_stored_is_told_to_its_sender() -> None:
    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal) as (_, connect):
            client = await connect()
            client.post(b"x")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not journal.blocks:
                    await asyncio.sleep(0.01)
            (block,) = journal.blocks
            assert block.on_unfit is not None
            block.on_unfit("too odd")
            status, _, said = await client.answer()
            assert (status, said["error"]) == (400, "this cannot be stored: too odd")

    run(test)
