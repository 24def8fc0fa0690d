"""Any bytes of a sender: messages or a refusal, bounded memory, and others are served.

``FLUMENG_FUZZ_EXAMPLES`` asks for more than the few examples of an ordinary run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flumeng.agent.ingest import batch
from flumeng.connectors.api.framing import Cutter, Framing, Messages, cutter
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.api.source import SourceContext
from flumeng.connectors.http import body as http_body
from flumeng.connectors.http.body import MemoryBound, RefusedError, Share
from flumeng.connectors.http.options import Http
from flumeng.connectors.http.source import HttpSource
from flumeng.connectors.network.options import Syslog
from flumeng.connectors.network.sockets import SyslogSource

EXAMPLES = int(os.environ.get("FLUMENG_FUZZ_EXAMPLES", "200"))
MAX = 64
MEMORY_BYTES = 1 << 16
bounded = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

FRAMINGS: tuple[Framing, ...] = ("auto", "newline", "octet-counted", "length-prefixed")
fragments = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [b"\n", b"\0", b" ", b"5 ", b"9999999999 ", b"0 ", b"-1 ", b"10 0123456789", b"<13>x\n"]
    ),
    st.integers(0, 2**32 - 1).map(lambda number: number.to_bytes(4, "big")),
    st.integers(0, 300).map(lambda size: b"%d %b" % (size, b"y" * size)),
    st.integers(0, 300).map(lambda size: size.to_bytes(4, "big") + b"z" * size),
)
streams = st.lists(fragments, max_size=30).map(b"".join)


def fed(made: Cutter, pieces: list[bytes]) -> Iterator[Messages]:
    for piece in pieces:
        yield from made.feed(bytearray(piece), len(piece))
    yield from made.end()


def events(found: list[Messages]) -> list[bytes]:
    """The bodies that the commit thread makes of the messages, without marks."""
    origin = Origin("h", (), LineRules(MAX, b"", keep_empty=False))
    blocks = [ReceivedBlock(data, origin, 0, bounds) for data, bounds, *_ in found]
    return [
        event["body"]
        for frame, _ in batch.build(blocks, lambda _: None)
        for event in frame.to_pylist()
    ]


@pytest.mark.slow
@bounded
@given(streams, st.lists(st.integers(0, 10**6), max_size=20), st.sampled_from(FRAMINGS))
@example(b"268435456", [1, 2, 3], "octet-counted")
def test_any_stream_is_cut_the_same_in_any_pieces(
    stream: bytes, cuts: list[int], framing: Framing
) -> None:
    places = sorted({0, *(cut % (len(stream) + 1) for cut in cuts), len(stream)})
    whole, apart = cutter(framing, MAX), cutter(framing, MAX)
    at_once = events(list(fed(whole, [stream])))
    in_parts = events(list(fed(apart, [stream[a:b] for a, b in pairwise(places)])))
    assert in_parts == at_once
    assert whole.malformed == apart.malformed
    assert all(len(body) <= MAX for body in at_once)
    assert sum(map(len, at_once)) <= len(stream)


@pytest.mark.slow
@bounded
@given(streams, st.sampled_from(FRAMINGS))
def test_framer_keeps_little_of_an_endless_message(stream: bytes, framing: Framing) -> None:
    made = cutter(framing, MAX)
    for _ in range(200):
        made.feed(bytearray(stream), len(stream))
        assert made.held <= MEMORY_BYTES


encodings = st.sampled_from(["", "identity", "gzip", "x-gzip", "zstd", "br", "gzip, gzip"])
kinds = st.sampled_from(
    ["text/plain", "", "application/json", "application/x-ndjson; charset=utf-8", ";", "a" * 1000]
)
json_parts = st.sampled_from(
    [b"{", b"}", b"[", b"]", b'"a"', b":", b",", b"1", b"\n", b"\\", b'"', b"\xff", b" ", b"null"]
)
bodies = st.one_of(
    st.binary(max_size=300),
    st.lists(json_parts, max_size=40).map(b"".join),
    st.binary(max_size=300).map(gzip.compress),
    st.binary(max_size=300).map(lambda data: gzip.compress(data)[:-3]),
    st.binary(max_size=300).map(lambda data: gzip.compress(data) + b"tail"),
    st.binary(max_size=300).map(lambda data: bytes(pa.compress(data, "zstd", asbytes=True))),
    st.just(gzip.compress(bytes(50_000_000), 1)),
    st.just(bytes(pa.compress(bytes(50_000_000), "zstd", asbytes=True))),
    st.binary(max_size=300).map(zlib.compress),
    st.just(b"[" * 100_000),
    st.just(b'{"a":' * 100_000),
)


@pytest.mark.slow
@bounded
@given(bodies, encodings, kinds)
@example(b"[" * 100_000, "", "application/x-ndjson")
def test_any_body_is_events_or_a_refusal(body: bytes, encoding: str, kind: str) -> None:
    limit = 1_000_000
    try:
        data = http_body.unpack(body, encoding, limit, Share(MemoryBound(0)))
        found = list(http_body.messages(data, kind))
    except RefusedError as refused:
        assert refused.status in (400, 413, 415)
        assert 0 < len(str(refused)) < 500
        return
    assert len(data) <= limit
    assert sum(len(part.data) for part in found) <= len(data) + 1


heads = st.sampled_from(
    [
        b"POST / HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"Host: h\r\n", b"Content-Length: 5\r\n", b"Content-Length: -5\r\n",
        b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n",
        b"Content-Type: application/json\r\n", b"Expect: 100-continue\r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Connection: close\r\n",
        b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"hello",
        b"\x16\x03\x01",
    ]
)  # fmt: skip
conversations = st.lists(st.one_of(heads, st.binary(max_size=50)), max_size=12).map(b"".join)


@pytest.mark.slow
@settings(parent=bounded, max_examples=max(EXAMPLES // 8, 1))
@given(st.lists(conversations, min_size=1, max_size=8))
def test_http_answers_or_closes_and_serves_the_next_request(said: list[bytes]) -> None:
    async def test() -> None:
        taken: list[ReceivedBlock] = []
        failures: list[Exception] = []

        def submit(block: ReceivedBlock) -> None:
            taken.append(block)
            assert block.on_durable is not None
            block.on_durable(0)

        context = SourceContext("me", {}, submit, failures.append, lambda: None)
        source = HttpSource(Http(listen="127.0.0.1:0", max_body_bytes=100_000), context)
        await source.start()
        port = int(source.addresses[0].rpartition(":")[2])
        for data in said:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            writer.write_eof()
            with contextlib.suppress(ConnectionError, TimeoutError):
                answer = await asyncio.wait_for(reader.read(20_000), 0.05)
                assert answer[:9] in (b"", b"HTTP/1.1 ")
                assert answer[9:10] != b"5"
            writer.close()
        before = len(taken)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\ngood")
        assert await asyncio.wait_for(reader.readline(), 10) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        assert [block.data for block in taken[before:]] == [b"good\n"]
        await source.stop()
        assert failures == []

    uvloop.run(test())


@pytest.mark.slow
@settings(parent=bounded, max_examples=max(EXAMPLES // 8, 1))
@given(st.lists(streams, min_size=1, max_size=8), st.sampled_from(["tcp", "udp"]))
def test_syslog_takes_any_bytes_and_serves_the_next_sender(
    sent: list[bytes], protocol: str
) -> None:
    async def test() -> None:
        taken: list[ReceivedBlock] = []
        failures: list[Exception] = []
        context = SourceContext("me", {}, taken.append, failures.append, lambda: None)
        options = Syslog(listen="127.0.0.1:0", protocol=protocol, max_line_bytes=MAX)  # type: ignore[arg-type]
        source = SyslogSource(options, context)
        await source.start()
        host, _, port = source.addresses[0].rpartition(":")
        loop = asyncio.get_running_loop()
        for data in [*sent, b"<13>good\n"]:
            if protocol == "udp":
                transport, _ = await loop.create_datagram_endpoint(
                    asyncio.DatagramProtocol, remote_addr=(host, int(port))
                )
                transport.sendto(data[:60_000])
                transport.close()
            else:
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(data)
                writer.close()
                await writer.wait_closed()
        await source.stop()
        frames = [frame for frame, _ in batch.build(taken, lambda _: None)]
        found = [body for frame in frames for body in frame.column("body").to_pylist()]
        assert b"<13>good" in found
        assert all(len(body) <= MAX for body in found)
        assert failures == []

    uvloop.run(test())
