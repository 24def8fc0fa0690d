"""Dead letters: events that a sink refuses for good or a filter cannot process. One Spark task runs
the stages of a sink and of its dead letters: their outputs are committed together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any

import pyarrow as pa

from flumeng.connectors.api.dead_letter_columns import ADDED
from flumeng.events import identity
from flumeng.events.lazy_batch import HELD_BYTES, Stage, write_stream
from flumeng.platform.errors import FlumengError
from flumeng.platform.scrubbing import scrub

Refuse = Callable[[pa.RecordBatch, Sequence[str]], None]
"""Function that takes refused events, with the sink's columns, and a reason for each event."""
RefusingStage = Callable[[Iterator[pa.RecordBatch], Refuse], Iterator[pa.RecordBatch]]

KEPT = {identity.JOURNAL: "journal", identity.SEQ: "seq"}
"""Identity columns, and their copies in events: dead letters restore copies that were dropped."""
DEAD_LETTERS = "dead_letters"
"""Column of result rows: an Arrow stream of the dead letter stage's rows; null in other rows."""


class RefusedError(FlumengError):
    """A sink refuses an event for good, and the flow has no dead letters."""


@dataclass(frozen=True)
class DeadLetters:
    """Target of the events that a sink refuses. ``place`` and ``revision``: of the sink. ``stage``:
    writes dead letters; None when the flow has no sink for them. ``identified``: dead letters keep
    the identity columns."""

    place: str = ""
    revision: int = 0
    stage: Stage | None = None
    identified: bool = False

    def around(self, stage: RefusingStage, schema: pa.Schema) -> Stage:
        """Return a stage that runs ``stage``, then the dead letters' stage if any were refused. It
        yields rows in ``schema_around(schema)``."""
        return _WithDeadLetters(stage, schema, self)


def schema_around(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(DEAD_LETTERS, pa.binary()))


def schema_of_dead_letters(events: pa.Schema, *, identified: bool = False) -> pa.Schema:
    return pa.schema([*_event_schema(events, identified=identified), *ADDED])


@dataclass(frozen=True)
class _WithDeadLetters:
    stage: RefusingStage
    schema: pa.Schema
    letters: DeadLetters

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with SpooledTemporaryFile(HELD_BYTES) as held:
            refused = _Refused(held, self.letters)
            for batch in self.stage(batches, refused):
                none = pa.nulls(batch.num_rows, pa.binary())
                yield pa.RecordBatch.from_arrays(
                    [*batch.columns, none], schema=schema_around(self.schema)
                )
            if (rows := refused.written()) is not None:
                row = {DEAD_LETTERS: rows}
                yield pa.RecordBatch.from_pylist([row], schema_around(self.schema))


class _Refused:
    """Buffer of refused events, which are written when the sink's stage has ended."""

    def __init__(self, held: Any, letters: DeadLetters) -> None:
        self._held = held
        self._letters = letters
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def __call__(self, events: pa.RecordBatch, reasons: Sequence[str]) -> None:
        if not len(reasons):
            return
        if self._letters.stage is None:
            raise RefusedError(
                f"{self._letters.place} refuses {identity.name_of(events)}: {reasons[0]}. Correct "
                "the flow, or set its dead_letters to a sink that accepts such events, like files"
            )
        letters = _letters(events, reasons, self._letters)
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._held, letters.schema)
        self._writer.write_batch(letters)

    def written(self) -> bytes | None:
        """Write the dead letters. Return their stage's rows as an Arrow stream, or None."""
        if self._writer is None:
            return None
        self._writer.close()
        self._held.seek(0)
        assert self._letters.stage is not None
        output = pa.BufferOutputStream()
        write_stream(self._letters.stage(iter(pa.ipc.open_stream(self._held))), output)
        content: bytes = output.getvalue().to_pybytes()
        return content


@dataclass(frozen=True)
class ToDeadLetters:
    """Stage that turns a filter's failed events into dead letters; ``of`` returns their reasons."""

    place: str
    revision: int
    identified: bool
    of: Callable[[pa.RecordBatch], Sequence[str]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        letters = DeadLetters(self.place, self.revision, identified=self.identified)
        for events in batches:
            yield _letters(events, self.of(events), letters)


def _letters(
    events: pa.RecordBatch, reasons: Sequence[str], letters: DeadLetters
) -> pa.RecordBatch:
    count = len(reasons)
    now = round(time.time() * 1e6)
    shown = {reason: scrub(reason) for reason in set(reasons)}
    return pa.RecordBatch.from_arrays(
        [
            *_event_columns(events, identified=letters.identified),
            pa.array(map(shown.__getitem__, reasons), pa.string()),
            pa.repeat(letters.place, count).cast(pa.string()),
            pa.repeat(pa.scalar(letters.revision, pa.int64()), count),
            pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), count),
        ],
        schema=schema_of_dead_letters(events.schema, identified=letters.identified),
    )


def _event_schema(events: pa.Schema, *, identified: bool) -> pa.Schema:
    plain = events if identified else identity.without(events)
    return pa.schema([*plain, *(field for _, field in _dropped(events))])


def _event_columns(events: pa.RecordBatch, *, identified: bool) -> list[pa.Array]:
    plain = events if identified else identity.strip(events)
    return [*plain.columns, *(events[name] for name, _ in _dropped(events.schema))]


def _dropped(events: pa.Schema) -> list[tuple[str, pa.Field]]:
    """Return each identity column whose copy in the event was dropped by a filter: its name, and a
    field with the copy's name."""
    return [
        (name, events.field(name).with_name(own))
        for name, own in KEPT.items()
        if name in events.names and own not in events.names
    ]


def is_dead_letters(row: Mapping[str, Any]) -> bool:
    return row.get(DEAD_LETTERS) is not None


def rows(sink_rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the result rows of the dead letters' stage that are stored in a sink's result rows."""
    for row in sink_rows:
        if is_dead_letters(row) and row[DEAD_LETTERS]:
            with pa.ipc.open_stream(row[DEAD_LETTERS]) as reader:
                yield from reader.read_all().to_pylist()
