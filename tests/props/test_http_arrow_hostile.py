"""Bodies of Arrow messages that are damaged, or made on purpose: events or a refusal in bounded
memory, never a crash. Children parse them, since a crash would end the tests.

``FLUMENG_TEST_EXAMPLES`` says how much is tried.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from flumeng.agent.ingest import batch
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.http import arrow_body
from flumeng.connectors.http.body import MemoryBound, RefusedError
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.frame import Payload
from tests.testkit.arrow_messages import bent, stream_of, with_hidden_codec

EXAMPLES = int(os.environ.get("FLUMENG_TEST_EXAMPLES", "20000"))
OF_A_CHILD = 20_000
SECONDS = 600
MIB = 1 << 20
SPACE_BYTES = 512 * MIB
"""Address space that a child may take; threads and allocators reserve some."""
POOL_BYTES = 4 * MIB
"""Memory of Arrow for bodies below 64 KiB."""
ORIGIN = Origin("h", (("source", "http"),), LineRules(MIB, b"", keep_empty=False))


def events(rows: int, body_bytes: int = 12, schema: pa.Schema = EVENT_SCHEMA) -> pa.RecordBatch:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    attrs = [("team", "shop"), ("empty", ""), ("größe", "ü")]
    made = [
        {
            "body": (b"%d" % row).ljust(body_bytes, b"."),
            "ts": noon,
            "host": f"host{row % 3}",
            "attrs": attrs[: row % 3],
        }
        for row in range(rows)
    ]
    return pa.RecordBatch.from_pylist(made, schema)


def message(rows: int, body_bytes: int = 12, schema: pa.Schema = EVENT_SCHEMA) -> bytes:
    return events(rows, body_bytes, schema).serialize().to_pybytes()  # type: ignore[no-any-return]


OTHER = pa.RecordBatch.from_pydict({"x": pa.array(["a"] * 9).dictionary_encode()})
LARGE = EVENT_SCHEMA.set(0, pa.field("body", pa.large_binary()))
BODIES = [
    message(1),
    message(24),
    message(24) + message(0) + message(3, 600),
    message(24, schema=LARGE),
    b"".join(stream_of(events(24))),
    stream_of(events(24))[0],
    b"".join(stream_of(OTHER)),
    *(b"".join(stream_of(events(24, 600), compression=codec)[1:]) for codec in ("lz4", "zstd")),
    with_hidden_codec(events(24, 600), "zstd"),
]


def noisy(body: bytes, chance: random.Random) -> bytes:
    data = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def cut(body: bytes, chance: random.Random) -> bytes:
    first, last = sorted(chance.choices(range(len(body) + 1), k=2))
    return body[:first] + body[last:]


def spliced(body: bytes, chance: random.Random) -> bytes:
    other = chance.choice(BODIES)
    first, last = sorted(chance.choices(range(0, len(other) + 1, 4), k=2))
    at = chance.randrange(0, len(body) + 1, 4)
    return body[:at] + other[first:last] + body[at + chance.choice((0, last - first)) :]


def nested(body: bytes, chance: random.Random) -> bytes:
    """Put a message where the content or the metadata of another one begins."""
    at = chance.choice((4, 8, int.from_bytes(body[4:8], "little") + 8))
    return body[:at] + chance.choice(BODIES) + body[at:]


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [bent, bent, noisy, cut, spliced, nested]


def hostile(number: int) -> bytes:
    chance = random.Random(number)
    body = chance.choice(BODIES)
    for _ in range(chance.choice((1, 1, 2))):
        body = chance.choice(DAMAGES)(body or BODIES[0], chance)
    return body


def taken(body: bytes) -> int:
    """Journal the body's events and return their number. Raises RefusedError."""
    with MemoryBound(64 * MIB).share() as memory:
        pieces = arrow_body.pieces(body, "", 64 * MIB, memory, longest=MIB)
    blocks = [ReceivedBlock(b"", ORIGIN, 0, columns=piece.columns) for piece in pieces]
    rows = 0
    for events, state in batch.build(blocks, lambda _: None):
        events.validate(full=True)
        assert not any(column.null_count for column in events.columns)
        assert all(value is not None for row in events.to_pylist() for _, value in row["attrs"])
        Payload.encode(events, state)
        rows += events.num_rows
    return rows


def take_all(first: int, end: int) -> None:
    """Give the hostile bodies ``first`` to ``end - 1`` to the reader, in a child process. Print the
    number of each before it is read, so that a crash names it, and then how many were accepted."""
    space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + SPACE_BYTES,) * 2)
    accepted = 0
    for number in range(first, end):
        print(number, flush=True)
        try:
            taken(hostile(number))
        except RefusedError as error:
            assert error.status in (400, 413)
            assert 0 < len(str(error)) < 500, str(error)
        else:
            accepted += 1
    assert pa.default_memory_pool().max_memory() < POOL_BYTES
    print(accepted)


def test_any_body_is_events_or_a_refusal() -> None:
    accepted = 0
    for first in range(0, EXAMPLES, OF_A_CHILD):
        end = min(first + OF_A_CHILD, EXAMPLES)
        child = subprocess.run(
            [sys.executable, "-c", f"from {__name__} import take_all; take_all({first}, {end})"],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        *_, last = child.stdout.split()
        assert child.returncode == 0, f"body {last}: {child.stderr}"  # below 0: a signal
        accepted += int(last)
    assert EXAMPLES / 50 < accepted < EXAMPLES / 2
