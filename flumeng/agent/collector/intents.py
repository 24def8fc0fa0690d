"""Intents: write-ahead records of batches for targets that identify batches by number.

An intent is written before its batch reaches the target, and ends in the transaction that moves the
acks. The next owner repeats an open intent exactly, before anything new, except for parts that have
become unreadable. An intent is written only while its owner's ack version is current. When
partitions leave an ended task, the master raises its intent's epoch: this stops earlier owners.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from flumeng.agent.collector.ack import Acks, SupersededError
from flumeng.connectors.api.ranged import Range
from flumeng.control.zookeeper import ABSENT, Expected, Put, Store, Version
from flumeng.platform.errors import CorruptError
from zkschema import paths
from zkschema.records import NOTHING, Intent


def read(store: Store, flow: str, task: str) -> Intent | None:
    intent = store.read(paths.intent(flow, task))
    return None if intent is None else intent.value


class Intents:
    """One task's intent under one claim. After an error, outcomes may be unknown: claim again."""

    def __init__(
        self,
        store: Store,
        acks: Acks,
        flow: str,
        task: str,
        name: Callable[[], str] = lambda: uuid.uuid4().hex,
        *,
        filters: str = "",
    ) -> None:
        """Read the task's intent; call this after claiming ``acks``. ``filters``: those of another
        site with which new batches are read. Raises CorruptError when an
        open intent does not follow the acks, SupersededError when any intent has a higher epoch,
        ConflictError after another claim."""
        self._store = store
        self._acks = acks
        self._path = paths.intent(flow, task)
        self._filters = filters
        self._expect: Expected = ABSENT
        self._intent = Intent(
            epoch=acks.epoch,
            series=f"{flow}.{task}.{name()}",
            number=0,
            revision=0,
            splits=1,
            ranges={},
        )
        record = store.read(self._path)
        if record is not None:
            self._require_current(record.value)
            series = record.value.series or self._intent.series
            self._intent, self._expect = replace(record.value, series=series), record.version
            self._require_sound()

    @property
    def open(self) -> Intent | None:
        return self._intent if self._intent.ranges else None

    @property
    def last(self) -> Intent:
        return self._intent

    def decide(
        self, ranges: Sequence[Range], revision: int, splits: int, left_out: Sequence[Range] = ()
    ) -> Intent:
        """Write a batch's intent. Raises ConflictError after another claim, UnavailableError."""
        assert self.open is None, f"{self._path}: a batch is decided already"
        intent = replace(
            self._intent,
            epoch=self._acks.epoch,
            number=self._intent.number + 1,
            revision=revision,
            splits=splits,
            ranges={piece.partition: (piece.start, piece.end) for piece in ranges},
            flushed=tuple(piece.partition for piece in ranges if piece.flush),
            left_out=by_partition(left_out),
            filters=self._filters,
        )
        self._write(intent, ranges[0].partition)
        return intent

    def leave_out(self, left_out: Sequence[Range]) -> None:
        """Record parts of the open batch that are not written. Raises as ``decide``."""
        assert self.open is not None, f"{self._path}: nothing is decided"
        parts = by_partition(left_out)
        if parts != self._intent.left_out:
            self._write(replace(self._intent, left_out=parts), min(self._intent.ranges))

    def end(self) -> Put:
        """Return the write that ends the intent, to commit with its acks; then call ``ended``."""
        assert self.open is not None, f"{self._path}: nothing is decided"
        return Put(self._path, self._done, self._expect)

    def ended(self) -> None:
        assert isinstance(self._expect, Version)
        self._intent = self._done
        self._expect = Version(self._expect.number + 1)

    @property
    def _done(self) -> Intent:
        return replace(
            self._intent,
            epoch=self._acks.epoch,
            ranges={},
            flushed=(),
            left_out=NOTHING,
            filters="",
        )

    def _write(self, intent: Intent, partition: str) -> None:
        check = self._acks.check(partition)
        (version,) = self._store.commit([check, Put(self._path, intent, self._expect)])
        self._intent, self._expect = intent, version

    def _require_current(self, intent: Intent) -> None:
        if intent.epoch > self._acks.epoch:
            raise SupersededError(
                f"{self._path} has epoch {intent.epoch}, this task {self._acks.epoch}", intent.epoch
            )

    def _require_sound(self) -> None:
        for partition, (start, _) in self._intent.ranges.items():
            ack = self._acks.offsets.get(partition)
            if ack != start:
                self._acks.require_ours(self._acks.offsets)
                where = "does not own" if ack is None else f"has acked up to {ack}"
                raise CorruptError(
                    f"the intent {self._path} has batch {self._intent.number}, which reads "
                    f"partition {partition} from offset {start} on, but this task {where}: see "
                    "`flumeng ack intents`"
                )


def by_partition(pieces: Sequence[Range]) -> dict[str, tuple[tuple[int, int], ...]]:
    ranges: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for piece in pieces:
        ranges[piece.partition].append((piece.start, piece.end))
    return {partition: tuple(sorted(parts)) for partition, parts in ranges.items()}
