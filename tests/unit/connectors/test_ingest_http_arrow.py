"""Record batches in HTTP bodies: events with times, hosts, attributes, from untrusted senders."""

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
from tests.testkit.arrow_messages import stream_of, with_buffer, with_hidden_codec
from tests.unit.connectors.http_sending import Journal, run, serving

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
EVENT = {"body": b"up", "ts": NOON, "host": "a", "attrs": [("team", "shop")]}
OURS = (("source", "http"), ("peer", "127.0.0.1:1"), ("path", "/"))
MIB = 2**20


def messages(*batches: list[dict[str, object]], schema: pa.Schema = EVENT_SCHEMA) -> bytes:
    made = (pa.RecordBatch.from_pylist(rows, schema) for rows in batches)
    return b"".join(batch.serialize().to_pybytes() for batch in made)


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


LONG = {**EVENT, "body": b"x" * 64}
BATCH = pa.RecordBatch.from_pylist([EVENT] * 9, EVENT_SCHEMA)
LARGE = EVENT_SCHEMA.set(0, pa.field("body", pa.large_binary()))
NUMBERS = pa.schema(dict.fromkeys("abcd", pa.int64()))


def overlapping() -> bytes:
    """Hosts that are also the values of attributes: a copy has more bytes than the body."""
    return with_buffer(messages([{**EVENT, "host": "x" * 600}]), number=16, like=7)


def misaligned() -> bytes:
    """A message with four more bytes of metadata."""
    message = messages([EVENT])
    size = int.from_bytes(message[4:8], "little")
    metadata = message[8 : 8 + size]
    return (
        message[:4] + (size + 4).to_bytes(4, "little") + metadata + bytes(4) + message[8 + size :]
    )


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
    assert journaled(messages(*batches)) == expected


def test_large_body_is_cut_into_pieces_of_whole_events() -> None:
    draw = random.Random(1)
    sent = [{**EVENT, "body": draw.randbytes(draw.choice([1, 1, 1, 300_000]))} for _ in range(50)]
    sent += [{**EVENT, "body": b""}] * (MAX_ROWS + 1)
    found = pieces(messages(sent))
    assert [row for piece in found for row in piece.to_pylist()] == sent
    assert max(piece.num_rows for piece in found) <= MAX_ROWS
    assert max(piece.nbytes for piece in found) <= 2 * MIB
    assert len(found) > 5


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"{}", 400, "not Arrow record batches"),
        (messages([{**EVENT, "host": None}]), 400, "the column host has a null"),
        (messages([{**EVENT, "attrs": [("a", None)]}]), 400, "as a value, has a null"),
        (messages([EVENT], [{**EVENT, "attrs": [("client", "me")]}]), 400, "an attribute client"),
        (messages([EVENT, {**EVENT, "body": b"12345"}]), 413, "event 1 of the request has 5 bytes"),
        (b"".join(stream_of(BATCH, compression="zstd")[1:]), 400, "has compressed buffers"),
        (messages([EVENT])[:-8], 400, "not Arrow record batches"),
        (b"".join(stream_of(BATCH)), 400, "without a schema, .* no record batch but a schema"),
        (messages([EVENT]) + bytes(8), 400, "End of Arrow stream"),
        (messages([EVENT]) * 1001, 413, "more than 1000 record batches"),
        (with_hidden_codec(BATCH, "zstd"), 400, "metadata version V4"),
        (messages([{"x": 1}], schema=pa.schema({"x": pa.int8()})), 400, "columns body binary, ts"),
        (messages([EVENT] * 9, schema=NUMBERS), 400, "columns body binary, ts"),
        (messages([EVENT] * 9, schema=LARGE), 400, "columns body binary, ts"),
        (messages([LONG], schema=LARGE), 400, "the column body has another type"),
        (overlapping(), 400, "buffers of a record batch overlap"),
        (misaligned(), 400, "does not begin at a multiple of 8"),
    ],
)
def test_unfit_body_is_refused(body: bytes, status: int, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as raised:
        pieces(body, longest=4)
    assert raised.value.status == status


def test_batch_without_rows_may_have_no_bytes() -> None:
    """Some senders write no offsets then."""
    message = messages([])
    for number in (1, 6, 9, 12, 15):
        message = with_buffer(message, number, like=0)
    message = message.replace((40).to_bytes(8, "little"), bytes(8))[:-40]
    assert journaled(message) == []
    assert len(journaled(message + messages([EVENT]))) == 1


def test_time_that_no_journal_can_keep_is_refused() -> None:
    body = messages([EVENT])
    micros = (int(NOON.timestamp()) * 1_000_000).to_bytes(8, "little")
    assert body.count(micros) == 1
    with pytest.raises(RefusedError, match="outside of the years"):
        pieces(body.replace(micros, (2**62).to_bytes(8, "little")))


@given(st.randoms(use_true_random=False))
def test_damaged_body_is_refused_or_gives_valid_events(draw: random.Random) -> None:
    body = bytearray(messages([EVENT, {**EVENT, "body": b"x" * 50}], [EVENT]))
    for _ in range(draw.randint(1, 4)):
        body[draw.randrange(len(body))] = draw.randrange(256)
    try:
        journaled(bytes(body))
    except RefusedError as error:
        assert error.status in (400, 413)


def test_source_takes_batches_of_any_encoding() -> None:
    async def test() -> None:
        journal = Journal()
        async with serving(journal) as (_, connect):
            client = await connect()
            kind = f"Content-Type: {arrow_body.CONTENT_TYPE}"
            client.post(messages([EVENT]), kind)
            assert await client.status() == 200
            packed = bytes(pa.compress(messages([EVENT]), codec="zstd", asbytes=True))
            client.post(packed, kind, "Content-Encoding: zstd")
            assert await client.status() == 200
            client.post(b"line\n")
            assert await client.status() == 200
            client.post(messages(), kind)
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
