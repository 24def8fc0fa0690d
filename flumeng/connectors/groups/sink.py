"""Sink groups, in which one member takes each split: failover and load balancing. Executors keep a
split until a member has written it all. Output and staged files of failed members are discarded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from tempfile import SpooledTemporaryFile
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from flumeng.config import registry
from flumeng.config.component_summary import summary
from flumeng.connectors.api.dead_letters import DEAD_LETTERS, DeadLetters, schema_around
from flumeng.connectors.api.sink import Attempt, Row, Sink, TaskRevision, Written
from flumeng.connectors.groups.options import Group
from flumeng.events.lazy_batch import HELD_BYTES, LazyBatch, Stage, write_stream
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import scrub

PATIENCE_SECONDS, AGAIN_SECONDS = 3.0, 1.0
"""Time limit of a failing member before the next is tried, and the limit after a recent failure."""
ROUND_SECONDS = 45.0
"""No further member is tried after this time: the batch would time out without a reason."""
REASONS_CHARACTERS = 800
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
"""Output of a split: the member that took it (null if none), the member's rows as an Arrow stream,
and the members that failed before, with reasons. Other rows are about dead letters."""

FAILURES = (UnavailableError, OSError)
"""Errors not caused by the events: another member may accept them."""


class GroupSink:
    writes_at_once = False
    in_turns: ClassVar[bool]

    def __init__(self, options: Group, task: TaskRevision) -> None:
        self._options = options
        self._place = ""
        self._members: list[Sink] = [
            registry.get("sink", part.name).implementation_class()(part.options, task)
            for part in options.sinks
        ]
        self.roots = tuple(sorted({root for member in self._members for root in member.roots}))
        self.identified = any(member.identified for member in self._members)
        self._availability = of_group(
            (task.flow, repr(options)),
            len(self._members),
            options.backoff_seconds,
            options.max_backoff_seconds,
        )

    @property
    def trouble(self) -> str:
        """Description of members that fail while others take the events; empty if none fails."""
        return self._described("failed when last tried", self._availability.failing())

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        self._place = attempt.dead_letters.place
        ready = self._availability.ready()
        turn = self._availability.take_turns(batch.splits) if self.in_turns else None
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
                f"{letters.place}: a sink that takes DataFrames cannot be a member of a group"
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
            raise UnavailableError(self._described("no member accepts events", failed))
        parts = [self._members[number].written(output) for number, output in by_member.items()]
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

    def _described(self, state: str, reasons: Mapping[int, str]) -> str:
        if not reasons:
            return ""
        most = max(20, REASONS_CHARACTERS // len(reasons))
        texts = [
            f"[{number}] {summary(self._options.sinks[number])}: {reason}"
            for number, reason in sorted(reasons.items())
        ]
        cut = (text if len(text) <= most else f"{text[: most - 3]}..." for text in texts)
        return f"{self._place}: {state}: {'; '.join(cut)}"


class FirstOfSink(GroupSink):
    in_turns = False


class OneOfSink(GroupSink):
    in_turns = True


@dataclass(frozen=True)
class WriteToOne:
    """Stage that writes a split with the first of ``stages`` that accepts it. Members in ``ready``
    are tried first; with a ``turn``, in rotation. If all fail, the batch is repeated."""

    stages: tuple[Stage, ...]
    ready: tuple[int, ...]
    turn: int | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with SpooledTemporaryFile(HELD_BYTES) as held:
            if write_stream(batches, held):
                yield from self._write(held)

    def _write(self, held: Any) -> Iterator[pa.RecordBatch]:
        taking = _Taking(self.stages, held)
        output = taking.try_all(self._order())
        if output is None:
            yield _row(None, None, taking.failed)
        else:
            yield from output

    def _order(self) -> list[int]:
        ready = list(self.ready)
        if self.turn is not None and ready:
            first = (self.turn + _split()) % len(ready)
            ready = ready[first:] + ready[:first]
        return ready + [number for number in range(len(self.stages)) if number not in ready]


@dataclass
class _Taking:
    """Tries members with a ``held`` split. ``failed``: why members have not taken the split."""

    stages: Sequence[Stage]
    held: Any
    failed: dict[int, str] = field(default_factory=dict)

    def try_all(self, order: Sequence[int]) -> list[pa.RecordBatch] | None:
        began = time.monotonic()
        for number in order:
            if time.monotonic() - began > ROUND_SECONDS:
                break
            self.held.seek(0)
            try:
                output = list(self.stages[number](iter(pa.ipc.open_stream(self.held))))
            except _DeadLettersError as error:
                raise error.of from error
            except FAILURES as error:
                self.failed[number] = scrub(str(error)) or type(error).__name__
            else:
                self.failed.pop(number, None)
                return list(_rows(number, output, self.failed))
        return None


def _rows(
    number: int, output: Sequence[pa.RecordBatch], failed: Mapping[int, str]
) -> Iterator[pa.RecordBatch]:
    own: list[pa.RecordBatch] = []
    for batch in output:
        if DEAD_LETTERS not in batch.schema.names:
            own.append(batch)
            continue
        letters = batch.column(DEAD_LETTERS)
        own.append(batch.filter(pc.is_null(letters)))
        for content in letters.drop_null().to_pylist():
            yield pa.RecordBatch.from_pylist([{DEAD_LETTERS: content}], TAKEN_SCHEMA)
    stream = pa.BufferOutputStream()
    write_stream(own, stream)
    yield _row(number, stream.getvalue().to_pybytes(), failed)


def _row(number: int | None, rows: bytes | None, failed: Mapping[int, str]) -> pa.RecordBatch:
    row = {"member": number, "rows": rows, "failed": list(failed), "reasons": list(failed.values())}
    return pa.RecordBatch.from_pylist([row], TAKEN_SCHEMA)


def _read(rows: bytes) -> list[Row]:
    if not rows:
        return []
    with pa.ipc.open_stream(rows) as reader:
        output: list[Row] = reader.read_all().to_pylist()
        return output


def _split() -> int:
    """Return the number of this split within its batch."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


class _DeadLettersError(FlumengError):
    """The sink for dead letters failed, so the member that refused the events is not at fault."""

    def __init__(self, of: Exception) -> None:
        super().__init__(str(of))
        self.of = of


@dataclass(frozen=True)
class _WriteDeadLetters:
    stage: Stage

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.stage(batches)
        except FAILURES as error:
            raise _DeadLettersError(error) from error


def _letters(letters: DeadLetters, member: str) -> DeadLetters:
    stage = None if letters.stage is None else _WriteDeadLetters(letters.stage)
    return replace(letters, place=letters.place + member, stage=stage)


@dataclass
class _Member:
    """A member's back-off: its end ``until``, and the ``reason`` of the last failure, or empty."""

    failures: int = 0
    until: float = 0.0
    reason: str = ""


class Availability:
    """Back-offs by member number, for all tasks of a flow. Thread-safe. ``clock``: monotonic s."""

    def __init__(
        self,
        members: int,
        backoff_seconds: float,
        max_backoff_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members = [_Member() for _ in range(members)]
        self._backoff_seconds = backoff_seconds
        self._max_backoff_seconds = max_backoff_seconds
        self._clock = clock
        self._turn = 0
        self._lock = threading.Lock()

    def ready(self) -> tuple[int, ...]:
        with self._lock:
            now = self._clock()
            return tuple(n for n, member in enumerate(self._members) if member.until <= now)

    def failing(self) -> dict[int, str]:
        """Return the members that failed since their last success, with reasons."""
        with self._lock:
            return {n: member.reason for n, member in enumerate(self._members) if member.failures}

    def take_turns(self, count: int) -> int:
        """Reserve ``count`` numbers of the rotation, one per split; return the first."""
        with self._lock:
            first = self._turn
            self._turn += count
            return first

    def note(self, took: Collection[int], failed: Mapping[int, str]) -> None:
        """Record members that took splits or failed; a member that did both has failed. Failures in
        a back-off do not prolong it."""
        with self._lock:
            now = self._clock()
            for number in set(took) - failed.keys():
                self._members[number] = _Member()
            for number, reason in failed.items():
                member = self._members[number]
                member.reason = reason
                if member.until <= now:
                    seconds = self._backoff_seconds * 2.0 ** min(member.failures, 60)
                    member.until = now + min(seconds, self._max_backoff_seconds)
                    member.failures += 1


@lru_cache(maxsize=4096)
def of_group(
    key: Hashable,  # noqa: ARG001  the cache's key
    members: int,
    backoff_seconds: float,
    max_backoff_seconds: float,
) -> Availability:
    return Availability(members, backoff_seconds, max_backoff_seconds)
