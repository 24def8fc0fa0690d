"""Groups of sinks, of which one takes an event: failover, and taking turns.

The choice is made in the executors, split by split. A split is held until a member has taken all of
it, so that the next member has all of it too; what a member that failed has yielded counts for
nothing, and what it has staged is never shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from tempfile import SpooledTemporaryFile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from flumeng.config import registry
from flumeng.config.summary import summary
from flumeng.connectors.api.dead_letters import LETTERS, DeadLetters, schema_around
from flumeng.connectors.api.sink import Attempt, Row, Sink, TaskRevision, Written
from flumeng.connectors.groups import availability
from flumeng.connectors.groups.options import Group
from flumeng.events.lazy_batch import HELD_BYTES, LazyBatch, Stage, write_stream
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import scrub

PATIENCE_SECONDS, AGAIN_SECONDS = 3.0, 1.0
"""So long a member may fail before the next one has its events; and one that has failed lately."""
ROUND_SECONDS = 45.0
"""After so long no further member is tried: the loop would give the batch up, and nobody would hear
who has failed."""
REASONS_CHARACTERS = 800
"""Of all members together, in one sentence."""
TAKEN_SCHEMA = schema_around(
    pa.schema(
        [
            pa.field("member", pa.int32()),
            pa.field("rows", pa.binary()),
            pa.field("failed", pa.list_(pa.int32())),
            pa.field("reasons", pa.list_(pa.string())),
        ]
    )
)
"""A row for a split: which member has taken it, null when none has, and what that has yielded, as
an Arrow stream; which ones have failed before, and why. And rows about dead letters."""

FAILURES = (UnavailableError, OSError)
"""Say nothing about the events: another member may take them."""


class GroupSink:
    writes_at_once = False

    def __init__(self, options: Group, task: TaskRevision, *, in_turns: bool) -> None:
        self._options = options
        self._in_turns = in_turns
        self._place = ""
        self._members: list[Sink] = [
            registry.get("sink", part.name).implementation_class()(part.options, task)
            for part in options.sinks
        ]
        self.roots = tuple(sorted({root for one in self._members for root in one.roots}))
        self.identified = any(one.identified for one in self._members)
        self._availability = availability.of_group(
            (task.flow, repr(options)),
            len(self._members),
            options.backoff_seconds,
            options.max_backoff_seconds,
        )

    @property
    def trouble(self) -> str:
        """Which members take nothing, while others have their events."""
        return self._told("left alone", self._availability.failing())

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        self._place = attempt.dead_letters.place
        ready = self._availability.ready()
        turn = self._availability.take_turns(batch.splits) if self._in_turns else None
        failing = self._availability.failing()
        stages = tuple(
            self._stage(number, batch, attempt, patient=number not in failing)
            for number in range(len(self._members))
        )
        write = WriteToOne(stages, ready, turn)
        return batch.arrow(write, TAKEN_SCHEMA)

    def _stage(self, number: int, batch: LazyBatch, attempt: Attempt, *, patient: bool) -> Stage:
        member = self._members[number]
        begun = batch.beginning(batch.schema)
        staging = {root: attempt.staging[root] for root in member.roots if root in attempt.staging}
        letters = _letters(attempt.dead_letters, f"[{number}].{self._options.sinks[number].name}")
        if letters.identified and not member.identified:
            letters = replace(letters, stage=None)
        stage = member.stage(
            begun if member.identified else begun.without_identity(),
            Attempt(
                staging,
                None,
                letters,
                PATIENCE_SECONDS if patient else AGAIN_SECONDS,
                makes_staging=True,
            ),
        ).all_arrow
        if stage is None:
            raise UserError(
                f"{letters.place}: a sink that takes DataFrames is no member of a group"
            )
        return stage

    def written(self, rows: Sequence[Row]) -> Written:
        failed = {
            number: reason
            for row in rows
            for number, reason in zip(row["failed"], row["reasons"], strict=True)
        }
        by_member: dict[int, list[Row]] = {}
        for row in rows:
            if row["member"] is not None:
                by_member.setdefault(row["member"], []).extend(_read(row["rows"]))
        self._availability.note(by_member, failed)
        if any(row["member"] is None for row in rows):
            raise UnavailableError(self._told("no member takes events", failed))
        parts = [self._members[number].written(found) for number, found in by_member.items()]
        staged = self._roots(by_member)
        return Written(
            sum(part.events for part in parts),
            tuple(move for part in parts for move in part.files),
            sum(part.refused for part in parts),
            staged=staged,
            abandoned=tuple(root for root in self._roots(failed) if root not in staged),
        )

    def _roots(self, members: Iterable[int]) -> tuple[str, ...]:
        return tuple({root: None for number in members for root in self._members[number].roots})

    def _told(self, what: str, reasons: Mapping[int, str]) -> str:
        if not reasons:
            return ""
        most = max(20, REASONS_CHARACTERS // len(reasons))
        said = [
            _cut(f"[{number}] {summary(self._options.sinks[number])}: {reason}", most)
            for number, reason in sorted(reasons.items())
        ]
        return f"{self._place}: {what}: {'; '.join(said)}"


class FirstOfSink(GroupSink):
    def __init__(self, options: Group, task: TaskRevision) -> None:
        super().__init__(options, task, in_turns=False)


class OneOfSink(GroupSink):
    def __init__(self, options: Group, task: TaskRevision) -> None:
        super().__init__(options, task, in_turns=True)


@dataclass(frozen=True)
class WriteToOne:
    """Has one of the members' ``stages`` write a split: the first that can, of those that are
    ``ready`` before the others. With a ``turn`` these take turns. When none can, the loop repeats
    the batch. Yields TAKEN_SCHEMA."""

    stages: tuple[Stage, ...]
    ready: tuple[int, ...]
    turn: int | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with SpooledTemporaryFile(HELD_BYTES) as held:
            if write_stream(batches, held):
                yield from self._write(held)

    def _write(self, held: Any) -> Iterator[pa.RecordBatch]:
        taking = _Taking(self.stages, held)
        found = taking.try_all(self._order())
        if found is None:
            yield _row(None, None, taking.failed)
        else:
            yield from found

    def _order(self) -> list[int]:
        ready = list(self.ready)
        if self.turn is not None and ready:
            first = (self.turn + _split()) % len(ready)
            ready = ready[first:] + ready[:first]
        return ready + [number for number in range(len(self.stages)) if number not in ready]


@dataclass
class _Taking:
    """``failed``: why each member has not taken the split that is ``held``."""

    stages: Sequence[Stage]
    held: Any
    failed: dict[int, str] = field(default_factory=dict)

    def try_all(self, order: Sequence[int]) -> list[pa.RecordBatch] | None:
        """What is to be told of the first member that has taken it."""
        began = time.monotonic()
        for number in order:
            if time.monotonic() - began > ROUND_SECONDS:
                break
            self.held.seek(0)
            try:
                found = list(self.stages[number](iter(pa.ipc.open_stream(self.held))))
            except _LettersError as error:
                raise error.of from error
            except FAILURES as error:
                self.failed[number] = scrub(str(error)) or type(error).__name__
            else:
                self.failed.pop(number, None)
                return list(_rows(number, found, self.failed))
        return None


def _rows(
    number: int, found: Sequence[pa.RecordBatch], failed: Mapping[int, str]
) -> Iterator[pa.RecordBatch]:
    own: list[pa.RecordBatch] = []
    for batch in found:
        if LETTERS not in batch.schema.names:
            own.append(batch)
            continue
        letters = batch.column(LETTERS)
        own.append(batch.filter(pc.is_null(letters)))
        for content in letters.drop_null().to_pylist():
            yield pa.RecordBatch.from_pylist([{LETTERS: content}], TAKEN_SCHEMA)
    stream = pa.BufferOutputStream()
    write_stream(own, stream)
    yield _row(number, stream.getvalue().to_pybytes(), failed)


def _row(number: int | None, rows: bytes | None, failed: Mapping[int, str]) -> pa.RecordBatch:
    row = {
        "member": number,
        "rows": rows,
        "failed": list(failed),
        "reasons": list(failed.values()),
    }
    return pa.RecordBatch.from_pylist([row], TAKEN_SCHEMA)


def _read(rows: bytes) -> list[Row]:
    if not rows:
        return []
    with pa.ipc.open_stream(rows) as reader:
        found: list[Row] = reader.read_all().to_pylist()
        return found


def _split() -> int:
    """A number that the splits of a batch do not share."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


class _LettersError(FlumengError):
    """The sink for dead letters has failed, and not the member that refuses events."""

    def __init__(self, of: Exception) -> None:
        super().__init__(str(of))
        self.of = of


@dataclass(frozen=True)
class _WriteLetters:
    stage: Stage

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.stage(batches)
        except FAILURES as error:
            raise _LettersError(error) from error


def _letters(letters: DeadLetters, member: str) -> DeadLetters:
    stage = None if letters.stage is None else _WriteLetters(letters.stage)
    return replace(letters, place=letters.place + member, stage=stage)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
