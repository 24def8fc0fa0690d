"""One claim of a task's partitions, until their release or the first failed step.

Rules
1. Nothing is read, staged or acked before the claim and the recovery of leftovers. After any
   failure the task claims again, which settles every write of unknown outcome.
2. A batch is an exact set of ranges. Its acks move before its write (at most once), after its files
   are published (at least once), or in one transaction with its commit record (exactly once).
3. Targets that identify batches by number are written under an intent only. An open intent is
   repeated exactly, before anything new.
4. Two batches may be written at a time; commits keep their order and stop at a failed batch. At
   most once writes one at a time, so that a crash loses no more than that. Batches whose intent
   precedes their write also run one at a time.
5. Where lines are joined, batches run one at a time: each reports where the next one begins.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch, Pipeline
from flumeng.agent.collector.commit import Commits, OpenStore
from flumeng.agent.collector.delivery import Delivery
from flumeng.agent.collector.gaps import gaps as find_gaps
from flumeng.agent.collector.gaps import gone, left_out
from flumeng.agent.collector.intents import Intents
from flumeng.agent.collector.line_joins import LineJoins
from flumeng.agent.collector.measures import Place
from flumeng.agent.collector.outcome import Outcome
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import (
    COUNTED,
    MOST,
    BatchSize,
    Handoff,
    Scale,
    backlog,
    next_ranges,
)
from flumeng.connectors.api.ranged import Parts, Progress, Range, Reach
from flumeng.control.zookeeper import Store
from flumeng.platform import file_store
from flumeng.platform.errors import ConflictError, UnavailableError
from zkschema.records import Intent

log = logging.getLogger(__name__)

BATCHES_AT_ONCE = 2
REMOTE_BATCHES_AT_ONCE = 3
"""Of another site's flow: while one ends, others fill the line."""
LOOK_SECONDS = 5.0


class Readable(Protocol):
    def of(self, starts: Mapping[str, int]) -> dict[str, Reach]: ...

    def follow(self, leader_epochs: Mapping[str, int | None]) -> None: ...

    def leave_out(self, parts: Parts) -> None: ...

    def refresh(self, partitions: Collection[str]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Backlog:
    """Size of the next batch, which is due in ``due_seconds``; None when none can be read."""

    events: int
    due_seconds: float | None


class ClaimedTask:
    """A task's work under one claim. ``planned``: partition -> offset up to which batches have
    read it so far; never below the ack. ``backlog`` and ``start`` are never called at the same
    time, nor is ``commit`` by two threads."""

    def __init__(
        self,
        assignment: Assignment,
        store: Store,
        publisher: Publisher,
        pipeline: Pipeline,
        readable: Readable,
        *,
        size: BatchSize,
        clock: Callable[[], float] = time.monotonic,
        open_store: OpenStore = file_store.open_store,
    ) -> None:
        self._pipeline = pipeline
        self._readable = readable
        self._size = size
        self._clock = clock
        self._running: deque[Batch] = deque()
        multiline = pipeline.spec.multiline
        alone = (
            pipeline.spec.delivery == "at-most-once"
            or pipeline.intent == "before"
            or multiline is not None
        )
        remote = any(part.options.remote for part in pipeline.spec.partitioned)
        many = REMOTE_BATCHES_AT_ONCE if remote else BATCHES_AT_ONCE
        self._batches_at_once = 1 if alone else many
        self._last_end = 0.0
        self._caught_up = False
        self._ends: dict[str, int] = {}
        self._next_look = -math.inf
        self._commits = Commits(store, assignment.flow, assignment.task, open_store)
        leftovers = self._commits.leftovers(
            pipeline.roots, assignment.partitions, pipeline.spare_roots
        )
        self._acks = Acks.claim(
            store,
            publisher,
            assignment.flow,
            assignment.epoch,
            assignment.partitions,
            rules="" if multiline is None else multiline.digest,
        )
        self._commits.recover(leftovers)
        self._joins = None if multiline is None else LineJoins(multiline, self._acks, clock)
        intents = Intents(
            store, self._acks, assignment.flow, assignment.task, filters=pipeline.filters
        )
        self._delivery = Delivery(pipeline, self._acks, self._commits, intents, assignment.revision)
        if (repeat := self._delivery.repeat) is not None:
            if repeat.revision != assignment.revision:
                raise ConflictError(f"meanwhile revision {repeat.revision} has decided a batch")
            if repeat.filters != pipeline.filters:
                raise ConflictError("meanwhile a batch was decided with other filters of its site")
            readable.leave_out(repeat.left_out)
        inherited = bool(self._acks.inherited)  # the backlog has waited for an owner
        self._waiting_since: float | None = -math.inf if inherited else None
        self.planned = dict(self._acks.emitted)
        self._leader_epochs = dict(self._acks.leader_epochs)
        """Leader epoch of each partition at its ``planned`` offset."""
        readable.follow(self._leader_epochs)
        self._handoff = Handoff()
        self._replayed_below: dict[str, int] = {}

    @property
    def caught_up(self) -> bool:
        """Whether the last check reached all partitions, and committed batches read all it saw."""
        return self._caught_up and not self._running

    @property
    def proven(self) -> bool:
        """Whether this claim has committed a batch, or found none to do."""
        return self._last_end > 0 or self.caught_up

    @property
    def places(self) -> dict[str, Place]:
        """The ack of each partition, and the partition's end at the last check."""
        acked = self._acks.emitted.items()
        return {name: Place(ack, self._ends.get(name)) for name, ack in acked}

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def written(self) -> bool:
        return bool(self._running) and self._running[0].outcome is not None

    @property
    def writing(self) -> bool:
        return any(batch.outcome is None for batch in self._running)

    @property
    def may_start(self) -> bool:
        return len(self._running) < (1 if self.repeating else self._batches_at_once)

    @property
    def repeating(self) -> bool:
        """Whether the batch of an open intent is not acked yet; until then nothing new is read."""
        return self._delivery.repeating

    @property
    def handed_off(self) -> bool:
        """Whether no readable events that ``hand_off`` requested remain unacked."""
        return self._handoff.done and not self._running

    def backlog(self, *, eager: bool) -> Backlog:
        """Return the readable backlog. It is due now if ``eager``, for a handoff, when it fills a
        batch, and when one of its partitions is full or all of them are closed."""
        reached = self._reached()
        safe = self._safe(reached)
        if (repeat := self._delivery.repeat) is not None:
            self._caught_up = False
            again = self._ranges(repeat)
            ready = can_be_read(again, reached)
            return Backlog(_scale(reached).total(again), 0.0 if ready else None)
        delivered = self.planned if self._joins is None else self._acks.emitted
        eager |= self._handoff.is_due(safe, delivered)
        waiting = backlog(self.planned, safe, _scale(reached))
        self._caught_up = waiting == 0 and len(safe) == len(self.planned)
        quiet = self._quiet_seconds(reached)
        if waiting == 0 and not quiet:
            self._waiting_since = None
            return Backlog(0, None)
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        left = self._waiting_since + self._pipeline.spec.batch_seconds - now
        if waiting == 0:
            unseen = 0.0 if eager else max(0.0, left)
            return Backlog(len(quiet), max(unseen, min(quiet.values())))
        unread = [reached[name] for name, end in safe.items() if end > self.planned[name]]
        eager |= all(reach.closed for reach in unread) or any(reach.full for reach in unread)
        full = eager or waiting >= self._size.events
        return Backlog(min(waiting, self._size.events), 0.0 if full else max(0.0, left))

    def refresh(self) -> None:
        """Make the next check include everything that is safe now."""
        self._readable.refresh(self.planned)

    def hand_off(self) -> None:
        """Deliver everything that is safe now, without waiting for full batches."""
        self.refresh()
        self._handoff.begin(self.planned)

    def start(self, most_events: int | None = None) -> Batch | None:
        """Stage and return the next batch, of at most about ``most_events`` unless it is repeated;
        None when none can be read. Raises errors of store and lake; then drop the claim."""
        reached = self._reached()
        limit = self._size.events if most_events is None else min(self._size.events, most_events)
        repeat = self._delivery.repeat
        if repeat is not None:
            replayed = self._pipeline.spec.delivery == "at-least-once"
            again = self._ranges(repeat, replayed=replayed)
            ranges = again if can_be_read(again, reached) else ()
            gaps, lacks = gone(again, reached), left_out(ranges, reached)
        else:
            gaps, lacks = find_gaps(self._starts, reached, MOST), ()
            ranges = tuple(gap.piece for gap in gaps) or self._next_ranges(reached, limit)
            if not gaps and self._joins is None:
                lacks = left_out(ranges, reached)
        self._waiting_since = None
        if not ranges:
            return None
        ranges = self._under_leaders(ranges, reached, cut_is_told=bool(gaps))
        scale = _scale(reached)
        identity = splits = None
        unread = [gap.piece for gap in gaps or lacks]
        if repeat is not None:
            identity, splits = self._delivery.take_repeat(unread)
        elif self._pipeline.intent == "before":
            splits = 1 if gaps else self._pipeline.splits(ranges, scale)
            identity = self._delivery.decide(ranges, splits, unread)
        if self._pipeline.spec.delivery == "at-most-once":
            self._acks.advance(ranges, [write for gap in gaps or lacks for write in gap.also])
        reread = 0 if gaps or self._joins is None else self._reread(ranges, scale)
        for piece in ranges:
            self.planned[piece.partition] = max(self.planned[piece.partition], piece.end)
            self._leader_epochs[piece.partition] = piece.leader_epoch
        spare, commits = self._pipeline.spare_roots, self._commits
        staging = {
            root: (commits.name if root in spare else commits.stage)(
                root, ranges[0].partition, self._acks.epoch
            )
            for root in self._pipeline.roots
        }
        addresses = {piece.partition: _address(piece, reached[piece.partition]) for piece in ranges}
        began = self._clock()
        batch = Batch(
            ranges,
            addresses,
            staging,
            began,
            scale,
            identity,
            splits,
            gaps=gaps,
            left_out=lacks,
            reread=reread,
        )
        self._running.append(batch)
        return batch

    def settle(self, batch: Batch, outcome: Outcome) -> None:
        """Record the outcome of a batch; later outcomes are ignored."""
        if batch.outcome is None:
            batch.ended = self._clock()
            batch.outcome = outcome

    def commit(self) -> Batch:
        """Commit the oldest batch, which must be written. After any error, also the batch's own,
        drop the claim."""
        batch = self._running.popleft()
        assert batch.outcome is not None
        if isinstance(batch.outcome, Exception):
            raise batch.outcome
        self._delivery.commit(batch, self._joined(batch))
        for gap in batch.skipped:
            flow = self._pipeline.spec.flow
            log.warning("flow %s: events that cannot be read were skipped: %s", flow, gap.reason)
        seconds = batch.ended - max(batch.began, self._last_end)
        self._size.measured(batch.events, seconds)
        if (event_bytes := self._pipeline.event_bytes()) is not None:
            self._size.weighed(event_bytes)
        self._last_end = batch.ended
        files = sum(len(part.files) for part in batch.written)
        log.debug("a batch: %d events in %.2f s, %d files", batch.events, seconds, files)
        return batch

    def close(self) -> None:
        self._readable.close()

    @property
    def _starts(self) -> Mapping[str, int]:
        return self.planned if self._joins is None else self._acks.offsets

    def _quiet_seconds(self, reached: Mapping[str, Reach]) -> dict[str, float]:
        if self._joins is None or self._running:
            return {}
        return self._joins.quiet_seconds(reached, self.planned)

    def _next_ranges(self, reached: Mapping[str, Reach], limit: int) -> tuple[Range, ...]:
        safe, scale = self._safe(reached), _scale(reached)
        fresh = next_ranges(self.planned, safe, limit, self._replayed_below, scale)
        if self._joins is None:
            return fresh
        quiet = self._quiet_seconds(reached)
        return self._joins.ranges(fresh, reached, quiet, self._replayed_below)

    def _under_leaders(
        self, ranges: Sequence[Range], reached: Mapping[str, Reach], *, cut_is_told: bool
    ) -> tuple[Range, ...]:
        """Set the leader epochs of ``ranges``. A partition whose log was truncated keeps its old
        epoch until the gap record is written: a repeated batch may come first."""

        def epoch(partition: str) -> int | None:
            reach = reached[partition]
            untold = reach.cut is not None and not cut_is_told
            return self._leader_epochs[partition] if untold else reach.leader_epoch

        return tuple(replace(piece, leader_epoch=epoch(piece.partition)) for piece in ranges)

    def _joined(self, batch: Batch) -> Mapping[str, Progress] | None:
        """Return the acks after a batch of joined lines; None when they are its ranges' ends."""
        if self._joins is None or batch.gaps:
            return None
        return self._joins.progress_of(batch, self._pipeline.joined(batch.ranges))

    def _reread(self, ranges: Sequence[Range], scale: Scale) -> int:
        return scale.total(
            replace(piece, end=min(piece.end, max(piece.start, self.planned[piece.partition])))
            for piece in ranges
        )

    def _ranges(self, decided: Intent, *, replayed: bool = False) -> tuple[Range, ...]:
        flushed = frozenset(decided.flushed)
        return tuple(
            Range(
                name,
                *bounds,
                replayed,
                self._acks.emitted[name],
                name in flushed,
                sure=self._acks.sure[name],
            )
            for name, bounds in sorted(decided.ranges.items())
        )

    def _reached(self) -> dict[str, Reach]:
        reached = self._readable.of(self._starts)
        if self._joins is not None:
            self._joins.note(reached)
        self._look_at_acks(reached)
        self._mark_replayed(reached)
        self._ends = {name: reach.safe + reach.held for name, reach in reached.items()}
        return reached

    def _safe(self, reached: Mapping[str, Reach]) -> dict[str, int]:
        return {name: reach.safe for name, reach in reached.items()}

    def _look_at_acks(self, reached: Mapping[str, Reach]) -> None:
        """Raise ConflictError when an operator has moved the ack of a stopped partition."""
        still = [name for name, reach in reached.items() if reach.held]
        if still and self._clock() >= self._next_look:
            self._next_look = self._clock() + LOOK_SECONDS
            with contextlib.suppress(UnavailableError):
                self._acks.require_ours(still)

    def _mark_replayed(self, reached: Mapping[str, Reach]) -> None:
        """Mark events of earlier claims as replayed: they may have been delivered but not acked."""
        if self._pipeline.spec.delivery != "at-least-once":
            return
        for name in reached.keys() & self._acks.inherited - self._replayed_below.keys():
            reach = reached[name]
            self._replayed_below[name] = reach.safe + reach.held


def _scale(reached: Mapping[str, Reach]) -> Scale:
    contents = {n: reach.contents for n, reach in reached.items() if reach.contents is not None}
    return Scale(contents) if contents else COUNTED


def _address(piece: Range, reach: Reach) -> str:
    contents = reach.contents
    return reach.address if contents is None else contents.address(piece.start, piece.end)


def can_be_read(ranges: Sequence[Range], reached: Mapping[str, Reach]) -> bool:
    """Return whether a repeated batch can be read now, apart from the parts it leaves out."""
    ends = {name: max(reach.safe, reach.repeatable) for name, reach in reached.items()}
    return all(ends.get(piece.partition, 0) >= piece.end for piece in ranges)
