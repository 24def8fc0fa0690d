"""Bodies of HTTP/1.1 as clients may announce them: kept whole, or not answered with 2xx."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.connectors.http_sending import Client, Journal, run, serving

POST = b"POST /x HTTP/1.1\r\nHost: h\r\n"
LINES = b"line 1\nline 2\n"
SIZED = b"Content-Length: 14\r\n\r\n" + LINES
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\ne\r\n" + LINES + b"\r\n0\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"


async def answers(client: Client, count: int) -> list[int]:
    return [await client.status() for _ in range(count)]


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + H2C + SIZED,
        POST + H2C + CHUNKED + b"\r\n",
        POST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + SIZED,
        POST + b"TE: trailers\r\nTrailer: X-A\r\n" + CHUNKED + b"X-A: b\r\n\r\n",
        POST + CHUNKED + b"Content-Encoding: gzip\r\n\r\n",
        b"POST /x HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n" + SIZED,
    ],
    ids=["h2c", "h2c-chunked", "websocket", "trailer", "trailer-is-no-header", "expect-in-1.0"],
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_body_is_kept_however_request_is_cut(request_bytes: bytes, step: int) -> None:
    """An offered protocol is ignored; the next request on the connection is one too."""

    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            client = await connect()
            for begin in range(0, len(request_bytes), step):
                client.send(request_bytes[begin : begin + step])
                await asyncio.sleep(0)
            assert await client.status() == 200
            assert journal.bodies() == [b"line 1", b"line 2"]
            if b"HTTP/1.0" not in request_bytes:
                client.send(POST + SIZED)
                assert await client.status() == 200
                assert len(journal.bodies()) == 4

    run(test)


def test_offered_upgrade_among_pipelined_requests_keeps_order() -> None:
    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            client = await connect()
            for number in (b"1", b"2", b"3", b"4"):
                offer = H2C if number in b"24" else b""
                client.send(POST + offer + b"Content-Length: 1\r\n\r\n" + number)
            assert await answers(client, 4) == [200] * 4
            assert journal.bodies() == [b"1", b"2", b"3", b"4"]

    run(test)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (POST + b"\r\n", 411),
        (b"POST /x HTTP/1.0\r\n\r\n" + LINES, 411),
        (POST + H2C + b"\r\n", 411),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + H2C + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 501),
        (b"CONNECT /x HTTP/1.1\r\nHost: h\r\n" + SIZED, 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
    ids=[
        "no-length",
        "no-length-1.0",
        "no-length-h2c",
        "empty-chunked",
        "empty-chunked-h2c",
        "coded-twice",
        "connect",
        "http2",
    ],
)
def test_request_without_readable_body_is_not_answered_200(head: bytes, status: int) -> None:
    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            client = await connect()
            client.send(head)
            assert await client.status() == status
            assert journal.blocks == []

    run(test)


def test_truncated_request_body_is_discarded() -> None:
    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            client = await connect()
            client.send(POST + H2C + SIZED[:-1])
            client.writer.write_eof()
            assert await client.reader.read() == b""
            assert journal.blocks == []

    run(test)


def test_empty_body_that_is_announced_as_empty_is_answered_200() -> None:
    async def test() -> None:
        async with serving(Journal()) as (_, connect):
            client = await connect()
            client.post(b"")
            assert await client.status() == 200

    run(test)
