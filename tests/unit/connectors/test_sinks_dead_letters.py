"""Refused events leave a sink's stage for the one of dead letters, with why, where and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from flumeng.connectors.api import dead_letters
from flumeng.connectors.api.dead_letters import DeadLetters, Refuse, RefusedError
from flumeng.events import identity

ROWS = pa.schema([pa.field("events", pa.int64())])
EVENTS = identity.with_identity(
    pa.schema(
        [
            pa.field("body", pa.binary()),
            pa.field("journal", pa.string()),
            pa.field("seq", pa.int64()),
        ]
    )
)


def events(first: int, count: int) -> pa.RecordBatch:
    seqs = pa.array(range(first, first + count), pa.int64())
    bodies = pa.array([b"body %d" % seq for seq in seqs.to_pylist()], pa.binary())
    journals = pa.array(["web.n1.0.a"] * count)
    plain = pa.RecordBatch.from_arrays([bodies, journals, seqs], ["body", "journal", "seq"])
    return identity.identify(plain, 3)


def refuse_odd(batches: Iterator[pa.RecordBatch], refuse: Refuse) -> Iterator[pa.RecordBatch]:
    kept = 0
    for batch in batches:
        odd = [number for number, seq in enumerate(batch["seq"].to_pylist()) if seq % 2]
        refuse(batch.take(pa.array(odd, pa.int32())), [f"{number} is odd" for number in odd])
        kept += batch.num_rows - len(odd)
    yield pa.RecordBatch.from_pylist([{"events": kept}], ROWS)


class Written:
    """A stage that keeps dead letters and yields their number."""

    def __init__(self) -> None:
        self.letters: list[dict[str, Any]] = []

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema == dead_letters.schema_of_dead_letters(EVENTS)
            self.letters += batch.to_pylist()
        yield pa.RecordBatch.from_pylist([{"events": len(self.letters)}], ROWS)


def run(letters: DeadLetters, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    stage = letters.around(refuse_odd, ROWS)
    return [row for batch in stage(iter(batches)) for row in batch.to_pylist()]


def test_dead_letters_have_reason_place_revision_and_time() -> None:
    written = Written()
    before = datetime.now(UTC)
    rows = run(DeadLetters("sinks[0].any", 7, written), events(0, 4), events(4, 4))
    assert [row["events"] for row in rows if not dead_letters.is_dead_letters(row)] == [4]
    assert list(dead_letters.rows(rows)) == [{"events": 4}]
    assert [letter["seq"] for letter in written.letters] == [1, 3, 5, 7]
    first = written.letters[0]
    assert first.keys() == {
        "body", "journal", "seq", "dead_reason", "dead_place", "dead_revision", "dead_time",
    }  # fmt: skip
    assert (first["body"], first["dead_reason"]) == (b"body 1", "1 is odd")
    assert (first["dead_place"], first["dead_revision"]) == ("sinks[0].any", 7)
    assert before.timestamp() - 1 <= first["dead_time"].timestamp() <= time.time() + 1


def test_letter_has_its_identity_for_a_sink_that_needs_it() -> None:
    found: list[pa.RecordBatch] = []

    def keep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found.extend(batches)
        yield pa.RecordBatch.from_pylist([{"events": 2}], ROWS)

    run(DeadLetters("sinks[0].any", 7, keep, identified=True), events(0, 4))
    (letters,) = found
    assert letters.schema == dead_letters.schema_of_dead_letters(EVENTS, identified=True)
    assert letters[identity.SEQ].to_pylist() == [1, 3]


def test_nothing_is_written_to_dead_letters_without_refused_events() -> None:
    written = Written()
    rows = run(DeadLetters("sinks[0].any", 7, written), events(0, 1))
    assert rows == [{"events": 1, "dead_letters": None}]
    assert written.letters == []


def test_refused_event_and_reason_are_named_without_dead_letters() -> None:
    with pytest.raises(RefusedError, match=r"sinks\[0\].any refuses the event web.n1.0.a-1: 1 is"):
        run(DeadLetters("sinks[0].any", 7), events(0, 4))


def test_failing_dead_letter_sink_fails_the_batch() -> None:
    def broken(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(DeadLetters("sinks[0].any", 7, broken), events(0, 4))


def test_identity_is_added_and_removed() -> None:
    batch = events(5, 2)
    assert batch.schema == EVENTS
    assert batch.select(list(identity.COLUMNS)).to_pylist()[1] == {
        "__journal": "web.n1.0.a",
        "__seq": 6,
        "__split": 3,
    }
    assert identity.strip(batch).schema.names == ["body", "journal", "seq"]
    assert identity.name_of(batch) == "the event web.n1.0.a-5"
    assert identity.strip(identity.strip(batch)).num_columns == 3


def test_letter_keeps_its_identity_when_a_filter_has_dropped_the_columns() -> None:
    found: list[pa.RecordBatch] = []

    def keep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found.extend(batches)
        yield pa.RecordBatch.from_pylist([{"events": 2}], ROWS)

    selected = events(0, 4).drop_columns(["journal", "seq"])
    stage = DeadLetters("sinks[0].any", 7, keep).around(refuse_all, ROWS)
    list(stage(iter([selected])))
    (letters,) = found
    assert letters.schema == dead_letters.schema_of_dead_letters(selected.schema)
    assert letters.schema.names[:3] == ["body", "journal", "seq"]
    assert letters["journal"].to_pylist() == ["web.n1.0.a"] * 4
    assert letters["seq"].to_pylist() == [0, 1, 2, 3]


def refuse_all(batches: Iterator[pa.RecordBatch], refuse: Refuse) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        refuse(batch, ["no"] * batch.num_rows)
    yield pa.RecordBatch.from_pylist([{"events": 0}], ROWS)
