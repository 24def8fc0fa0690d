"""Arrow streams in HTTP bodies: events with times, hosts and attributes, from untrusted senders."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.ingest import batch
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.http import arrow_body
from flumeng.connectors.http.body import MemoryBound, RefusedError
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.frame import MAX_ROWS, Payload
from tests.unit.connectors.http_sending import Journal, run, serving

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
EVENT = {"body": b"up", "ts": NOON, "host": "a", "attrs": [("team", "shop")]}
OURS = (("source", "http"), ("peer", "127.0.0.1:1"), ("path", "/"))
MIB = 2**20


def stream(
    *batches: list[dict[str, object]], schema: pa.Schema = EVENT_SCHEMA, **options: object
) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for rows in batches:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
    return bytes(sink.getvalue().to_pybytes())


def pieces(body: bytes, encoding: str = "", *, longest: int = MIB) -> list[pa.RecordBatch]:
    with MemoryBound(64 * MIB).share() as memory:
        found = arrow_body.pieces(body, encoding, 64 * MIB, memory, longest=longest)
    return [piece.columns for piece in found]


def journaled(body: bytes) -> list[dict[str, object]]:
    """The events that an ingest worker makes of a body."""
    origin = Origin("192.0.2.1", OURS, LineRules(MIB, b"", keep_empty=False))
    blocks = [ReceivedBlock(b"", origin, 0, columns=columns) for columns in pieces(body)]
    found = []
    for events, state in batch.build(blocks, lambda _: None):
        events.validate(full=True)
        Payload.encode(events, state)
        found += events.to_pylist()
    return found


texts = st.text(st.characters(codec="utf-8"), max_size=6)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=9),
            "ts": st.just(NOON),
            "host": texts,
            "attrs": st.dictionaries(
                texts.filter(lambda name: name not in arrow_body.OURS), texts, max_size=3
            ).map(lambda d: list(d.items())),
        }
    ),
    max_size=9,
)


@given(st.lists(rows, max_size=3))
def test_events_are_journaled_as_sent_with_attributes_of_the_source(
    batches: list[list[dict[str, object]]],
) -> None:
    expected = [
        {**row, "attrs": [*row["attrs"], *OURS]}  # type: ignore[misc]
        for rows in batches
        for row in rows
    ]
    assert journaled(stream(*batches)) == expected


def test_large_body_is_cut_into_pieces_of_whole_events() -> None:
    draw = random.Random(1)
    sent = [{**EVENT, "body": draw.randbytes(draw.choice([1, 1, 1, 300_000]))} for _ in range(50)]
    sent += [{**EVENT, "body": b""}] * (MAX_ROWS + 1)
    found = pieces(stream(sent))
    assert [row for piece in found for row in piece.to_pylist()] == sent
    assert max(piece.num_rows for piece in found) <= MAX_ROWS
    assert max(piece.nbytes for piece in found) <= 2 * MIB
    assert len(found) > 5


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"{}", 400, "not an Arrow IPC stream"),
        (stream([EVENT])[:-60], 400, "not an Arrow IPC stream"),
        (stream([{**EVENT, "host": None}]), 400, "the column host has a null"),
        (stream([{**EVENT, "attrs": [("a", None)]}]), 400, "as a value, has a null"),
        (stream([EVENT], [{**EVENT, "attrs": [("client", "me")]}]), 400, "an attribute client"),
        (stream([EVENT, {**EVENT, "body": b"12345"}]), 413, "event 1 of the request has 5 bytes"),
        (stream([EVENT] * 9, compression="zstd"), 400, "has compressed buffers"),
        (
            stream([{"x": 1}], schema=pa.schema({"x": pa.int8()})),
            400,
            "are x int8: send body binary",
        ),
    ],
)
def test_unfit_stream_is_refused(body: bytes, status: int, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as raised:
        pieces(body, longest=4)
    assert raised.value.status == status


def test_time_that_no_journal_can_keep_is_refused() -> None:
    body = stream([EVENT])
    micros = (int(NOON.timestamp()) * 1_000_000).to_bytes(8, "little")
    assert body.count(micros) == 1
    with pytest.raises(RefusedError, match="outside of the years"):
        pieces(body.replace(micros, (2**62).to_bytes(8, "little")))


@given(st.randoms(use_true_random=False))
def test_damaged_stream_is_refused_or_gives_valid_events(draw: random.Random) -> None:
    body = bytearray(stream([EVENT, {**EVENT, "body": b"x" * 50}], [EVENT]))
    for _ in range(draw.randint(1, 4)):
        body[draw.randrange(len(body))] = draw.randrange(256)
    try:
        journaled(bytes(body))
    except RefusedError as error:
        assert error.status in (400, 413)


def test_source_takes_arrow_streams_of_any_encoding() -> None:
    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            client = await connect()
            kind = "Content-Type: application/vnd.apache.arrow.stream"
            client.post(stream([EVENT]), kind)
            assert await client.status() == 200
            packed = bytes(pa.compress(stream([EVENT]), codec="zstd", asbytes=True))
            client.post(packed, kind, "Content-Encoding: zstd")
            assert await client.status() == 200
            client.post(b"line\n")
            assert await client.status() == 200
            client.post(stream(), kind)
            assert await client.status() == 200
            assert journal.bodies() == [b"up", b"up", b"line"]
            ours = ["source", "peer", "path"]
            names = [
                [name for name, _ in row["attrs"]]
                for frame, _ in batch.build(journal.blocks, lambda _: None)
                for row in frame.to_pylist()
            ]
            assert names == [["team", *ours], ["team", *ours], ours]

    run(test)
