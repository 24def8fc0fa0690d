"""The HTTP source on loopback sockets: its answers, and that no sender can hold it up."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import threading
from typing import NoReturn

import pytest

from flumeng.connectors.api.framing import Messages
from flumeng.connectors.http import app as http_app
from flumeng.connectors.http import body as http_body
from flumeng.connectors.http.body import MemoryBound, RefusedError
from flumeng.connectors.http.received_body import Limits
from flumeng.journal.log.frame import MAX_ROWS
from tests.testkit.waiting import PATIENCE_SECONDS, async_wait_for
from tests.unit.connectors.http_sending import Client, Journal, run, serving, silent


def test_connection_carries_many_requests() -> None:
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


def test_http_answer_waits_until_the_journal_is_durable() -> None:
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


def test_senders_get_429_under_back_pressure() -> None:
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


@pytest.mark.slow
def test_events_not_durable_at_the_stop_are_not_confirmed() -> None:
    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal, Limits(settle_seconds=0.1)) as (source, connect):
            client, half, idle = await connect(), await connect(), await connect()
            client.post(b"x")
            half.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf")
            await async_wait_for(lambda: journal.blocks)
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


def test_http_answer_waits_until_the_last_piece_of_a_large_body_is_durable() -> None:
    lines = 3 * http_body.PIECE_BYTES // 1000

    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal) as (_, connect):
            client = await connect()
            client.post((b"x" * 999 + b"\n") * lines)
            await async_wait_for(lambda: len(journal.bodies()) == lines)
            *others, last = journal.blocks
            assert len(others) > 1
            for block in others:
                if block.on_durable is not None:
                    block.on_durable(0)
            await silent(client)
            assert last.on_durable is not None
            last.on_durable(0)
            assert await client.status() == 200

    run(test)


def test_slow_journal_is_answered_with_503() -> None:
    async def test() -> None:
        async with serving(Journal(durable=False), Limits(durable_seconds=0.05)) as (_, connect):
            client = await connect()
            client.post(b"x")
            status, _, said = await client.answer()
            assert (status, said["error"]) == (503, "the events are not durable within 0 s: retry")

    run(test)


OUT_OF_MEMORY = "this node is out of memory or threads: retry later"


class NoMemory(MemoryBound):
    def share(self) -> NoReturn:
        raise MemoryError


def test_requests_are_refused_with_503_while_the_node_is_out_of_memory() -> None:
    async def test() -> None:
        async with serving(Journal(), Limits(bodies=NoMemory(1 << 20))) as (_, connect):
            client = await connect()
            for _ in range(2):  # on one connection
                client.post(b"x")
                status, headers, said = await client.answer()
                assert (status, said["error"]) == (503, OUT_OF_MEMORY)
                assert headers["retry-after"] == "1"

    run(test)


def test_request_is_refused_with_503_while_no_thread_can_parse_it() -> None:
    async def test() -> None:
        async with serving(Journal()) as (_, connect):
            client = await connect()
            client.post(b"x\n" * http_app.PARSE_ASIDE_BYTES)
            status, headers, said = await client.answer()
            assert (status, said["error"]) == (503, OUT_OF_MEMORY)
            assert headers["retry-after"] == "1"

    http_app._parsers().shutdown()  # its submit raises as without a thread
    try:
        run(test)
    finally:
        http_app._parsers.cache_clear()


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
def test_other_requests_have_their_status(request_line: str, status: int) -> None:
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
def test_endless_request_is_cut_off(beginning: bytes, endless: bytes) -> None:
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


def test_many_short_events_of_a_body_fit_into_frames() -> None:
    """The events of many very short lines are many times as large as the body."""
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


@pytest.mark.slow
def test_slow_senders_are_cut_off() -> None:
    limits = Limits(head_seconds=1.0, body_seconds=1.0, drain_seconds=0.1)

    async def test() -> None:
        journal = Journal()
        async with serving(journal, limits) as (_, connect):
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


def test_all_bodies_together_are_bounded() -> None:
    async def test() -> None:
        async with serving(Journal(), Limits(MemoryBound(100_000))) as (_, connect):
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


def test_large_body_is_parsed_in_a_thread_and_delays_no_other() -> None:
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


def test_unpacked_bytes_count_and_are_released_when_they_are_durable() -> None:
    """A body of 4 KB that unpacks to 4 MB is one of 4 MB."""
    bomb = gzip.compress(b"x" * 4_000_000)

    async def test() -> None:
        journal, bodies = Journal(durable=False), MemoryBound(6_000_000)
        async with serving(journal, Limits(bodies), max_line_bytes=1 << 24) as (_, connect):
            first, second = await connect(), await connect()
            first.post(bomb, "Content-Encoding: gzip")
            await async_wait_for(lambda: journal.blocks)
            assert 4_000_000 <= bodies.held_bytes < 4_010_000
            second.post(bomb, "Content-Encoding: gzip")
            status, headers, said = await second.answer()
            assert (status, headers["retry-after"]) == (429, "1")
            assert "too many bytes in flight" in said["error"]
            second.post(b"small")
            journal.make_durable()
            assert await first.status() == 200
            await async_wait_for(lambda: len(journal.blocks) >= 2)
            journal.make_durable()
            assert await second.status() == 200
            assert bodies.held_bytes == 0

    run(test)


def test_body_that_cannot_be_stored_is_answered_with_400() -> None:
    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal) as (_, connect):
            client = await connect()
            client.post(b"x")
            await async_wait_for(lambda: journal.blocks)
            (block,) = journal.blocks
            assert block.on_unfit is not None
            block.on_unfit("too odd")
            status, _, said = await client.answer()
            assert (status, said["error"]) == (400, "the events cannot be stored: too odd")

    run(test)


@pytest.mark.parametrize("kind", ["application/x-protobuf", "application/protobuf; charset=x"])
def test_protobuf_is_refused_with_advice(kind: str) -> None:
    """An exporter of OpenTelemetry sends it unless it is configured otherwise."""

    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            client = await connect()
            client.post(b"\n\x07\n\x05", f"Content-Type: {kind}")
            status, _, said = await client.answer()
            assert status == 415
            assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/json" in said["error"]
            assert (journal.blocks, journal.context.counters.malformed) == ([], 1)
            client.post(b"{}", "Content-Type: application/json")
            assert await client.status() == 200

    run(test)
