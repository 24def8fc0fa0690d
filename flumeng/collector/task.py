"""One claim of a task's partitions, from taking them until it is let go or something fails.

Rules
1. Nothing is read, staged or acked before the partitions are claimed and what an earlier owner left
   is cleared up. Whatever fails, the next thing is to claim anew: that settles every write whose
   outcome is unknown.
2. A batch is an exact set of ranges. Its acks move before its write (at most once), after it is
   shown (at least once), or in one transaction with the decision to show it (exactly once).
3. A target that knows batches by number is written under an intent only, however the flow
   delivers. One that is open when the partitions are claimed is repeated exactly, before anything
   new.
4. Batches may be written two at a time; they are committed one by one, in order, and never past
   one that failed. At most once writes one at a time, so that a crash loses no more than that.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flumeng.collector.acks import Acks
from flumeng.collector.commit import Commits, OpenStore
from flumeng.collector.intents import Intents
from flumeng.collector.publisher import Publisher
from flumeng.collector.ranges import BatchSize, backlog, next_ranges
from flumeng.collector.work import Outcome, Pipeline
from flumeng.errors import ConflictError, UnavailableError
from flumeng.inputs import Range, Reach
from flumeng.runtime import file_store
from flumeng.sinks import BatchId, Written
from flumeng.store import Store
from zkschema.records import Intent

log = logging.getLogger(__name__)

BATCHES_AT_ONCE = 2
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Assignment:
    """What the node wants of a task. ``draining``: let go of it after the running batches."""

    flow: str
    task: str
    epoch: int
    revision: int
    spec: str
    partitions: tuple[str, ...]
    draining: bool = False

    @property
    def key(self) -> str:
        return f"{self.flow}/{self.task}"


class Readable(Protocol):
    """Tells how far partitions can be read now; see ``Partitions``."""

    def of(self, starts: Mapping[str, int]) -> dict[str, Reach]: ...

    def refresh(self, partitions: Collection[str]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Backlog:
    """The next batch would have ``events``, and is due in so many seconds; None: none waits."""

    events: int
    due_seconds: float | None


@dataclass(eq=False)
class Batch:
    """``outcome`` is what the sinks made of it, once it is written, at ``ended``. Before it began,
    its task has waited for ``waited_seconds``. A batch that is decided before it is written has an
    ``identity``, and is cut into so many ``splits``."""

    ranges: tuple[Range, ...]
    addresses: Mapping[str, str]
    staging: Mapping[str, str]
    began: float
    identity: BatchId | None = None
    splits: int | None = None
    waited_seconds: float = 0.0
    ended: float = 0.0
    outcome: Outcome | None = None

    @property
    def events(self) -> int:
        return sum(r.events for r in self.ranges)

    @property
    def refused(self) -> int:
        """How many events have a time that was not believed, as sinks have seen."""
        return max((part.refused for part in self._written), default=0)

    @property
    def dead_letters(self) -> int:
        """How many events sinks have refused for good."""
        return sum(part.dead_letters for part in self._written)

    @property
    def _written(self) -> list[Written]:
        return self.outcome if isinstance(self.outcome, list) else []


class Task:
    """``planned``: where the next batch starts, per partition; never below the ack.

    ``look`` and ``start`` are never called at the same time, nor is ``commit`` by two threads.
    ``size`` outlives the claim, since what it has learned stays true.
    """

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
        self._store = store
        self._pipeline = pipeline
        self._readable = readable
        self._size = size
        self._clock = clock
        self._running: deque[Batch] = deque()
        alone = pipeline.spec.delivery == "at-most-once" or pipeline.intent == "before"
        self._batches_at_once = 1 if alone else BATCHES_AT_ONCE
        self._revision = assignment.revision
        self._last_end = 0.0
        self._caught_up = False
        self._next_look = -math.inf
        self._commits = Commits(store, assignment.flow, assignment.task, open_store)
        leftovers = self._commits.leftovers(pipeline.roots, assignment.partitions)
        self._acks = Acks.claim(
            store, publisher, assignment.flow, assignment.epoch, assignment.partitions
        )
        self._commits.recover(leftovers)
        self._intents = Intents(store, self._acks, assignment.flow, assignment.task)
        if self._intents.open is not None and self._intents.open.revision != assignment.revision:
            raise ConflictError("a batch of another revision was decided meanwhile")
        self._repeat = self._intents.open
        self._repeating = self._repeat is not None
        inherited = bool(self._acks.inherited)  # what is there has waited for an owner long enough
        self._waiting_since: float | None = -math.inf if inherited else None
        self.planned = dict(self._acks.offsets)
        self._replayed_below: dict[str, int] = {}

    @property
    def caught_up(self) -> bool:
        """Whether, when last looked, all partitions were reachable and all that can be read of them
        was acked."""
        return self._caught_up and not self._running

    @property
    def proven(self) -> bool:
        """Whether this claim has committed a batch, or has found that there is none to do."""
        return self._last_end > 0 or self.caught_up

    @property
    def running(self) -> bool:
        """Whether a batch is being written or waits to be committed."""
        return bool(self._running)

    @property
    def written(self) -> bool:
        """Whether the oldest batch waits to be committed."""
        return bool(self._running) and self._running[0].outcome is not None

    @property
    def writing(self) -> bool:
        """Whether a batch is being written."""
        return any(batch.outcome is None for batch in self._running)

    @property
    def may_start(self) -> bool:
        return len(self._running) < (1 if self._repeating else self._batches_at_once)

    @property
    def repeating(self) -> bool:
        """Whether the batch is not acked yet that was decided before the partitions were claimed:
        nothing new is read until then."""
        return self._repeating

    def look(self, *, eager: bool) -> Backlog:
        """What waits to be read. ``eager`` does not wait for events to gather, nor is there any use
        in it when no more come to what waits."""
        reached = self._reached()
        safe = self._safe(reached)
        if self._repeat is not None:
            self._caught_up = False
            again = _ranges(self._repeat)
            ready = _can_be_read(again, safe)
            return Backlog(sum(piece.events for piece in again), 0.0 if ready else None)
        waiting = backlog(self.planned, safe)
        self._caught_up = waiting == 0 and len(safe) == len(self.planned)
        if waiting == 0:
            self._waiting_since = None
            return Backlog(0, None)
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        left = self._waiting_since + self._pipeline.spec.batch_seconds - now
        eager |= all(reached[name].closed for name, end in safe.items() if end > self.planned[name])
        full = eager or waiting >= self._size.events
        return Backlog(min(waiting, self._size.events), 0.0 if full else max(0.0, left))

    def refresh(self) -> None:
        """Let the next look see all that is safe at this moment."""
        self._readable.refresh(self.planned)

    def start(self, most_events: int | None = None) -> Batch | None:
        """The next batch, staged and under way: of all that can be read now, as far as it fits.

        ``most_events`` is for a batch that shares its job. None when nothing waits. Raises what the
        store or the lake raise; then the claim is of no more use.
        """
        reached = self._reached()
        safe = self._safe(reached)
        limit = self._size.events if most_events is None else min(self._size.events, most_events)
        if self._repeat is not None:
            replayed = self._pipeline.spec.delivery == "at-least-once"
            again = _ranges(self._repeat, replayed=replayed)
            ranges = again if _can_be_read(again, safe) else ()
        else:
            ranges = next_ranges(self.planned, safe, limit, self._replayed_below)
        self._waiting_since = None
        if not ranges:
            return None
        identity = splits = None
        if self._repeat is not None:
            identity, splits = _identity(self._repeat), self._repeat.splits
            self._repeat = None
        elif self._pipeline.intent == "before":
            splits = self._pipeline.splits(ranges)
            identity = _identity(self._intents.decide(ranges, self._revision, splits))
        if self._pipeline.spec.delivery == "at-most-once":
            self._acks.advance(ranges)
        self.planned.update((piece.partition, piece.end) for piece in ranges)
        staging = {
            root: self._commits.stage(root, ranges[0].partition, self._acks.epoch)
            for root in self._pipeline.roots
        }
        addresses = {piece.partition: reached[piece.partition].address for piece in ranges}
        batch = Batch(ranges, addresses, staging, self._clock(), identity, splits)
        self._running.append(batch)
        return batch

    def settle(self, batch: Batch, outcome: Outcome) -> None:
        """``batch`` is written, or has failed; what comes later is not heard."""
        if batch.outcome is None:
            batch.ended = self._clock()
            batch.outcome = outcome

    def commit(self) -> Batch:
        """Commit the oldest batch, which is written, and give it. Raises why it was not, and what
        the store or the lake raise; then the claim is of no more use."""
        batch = self._running.popleft()
        assert batch.outcome is not None
        if isinstance(batch.outcome, Exception):
            raise batch.outcome
        files = [move for part in batch.outcome for move in part.files]
        staging = list(batch.staging.values())
        if self._pipeline.spec.delivery == "exactly-once":
            self._commit_once(batch, batch.outcome, staging, files)
        else:
            self._commits.publish(staging, files)
            _show(batch.outcome, None)
            if batch.identity is not None:
                self._acks.advance(batch.ranges, [self._intents.end()])
                self._end_intent()
            elif self._pipeline.spec.delivery == "at-least-once":
                self._acks.advance(batch.ranges)
        seconds = batch.ended - max(batch.began, self._last_end)
        self._size.measured(batch.events, seconds)
        self._last_end = batch.ended
        log.debug("%d events in %.2f s, %d files", batch.events, seconds, len(files))
        return batch

    def close(self) -> None:
        self._readable.close()

    def _commit_once(
        self,
        batch: Batch,
        outcome: Sequence[Written],
        staging: Sequence[str],
        files: Sequence[tuple[str, str]],
    ) -> None:
        record = self._commits.record(self._acks.epoch, staging, files)
        identity = batch.identity
        if identity is None and any(part.commit for part in outcome):
            splits = self._pipeline.splits(batch.ranges)
            identity = _identity(self._intents.decide(batch.ranges, self._revision, splits))
        _show(outcome, identity)
        if identity is None:
            self._commits.commit(self._acks, batch.ranges, record)
        else:
            self._commits.commit(self._acks, batch.ranges, record, [self._intents.end()])
            self._end_intent()

    def _end_intent(self) -> None:
        self._intents.ended()
        self._repeating = False

    def _reached(self) -> dict[str, Reach]:
        reached = self._readable.of(self.planned)
        self._look_at_acks(reached)
        self._mark_replayed(reached)
        return reached

    def _safe(self, reached: Mapping[str, Reach]) -> dict[str, int]:
        return {name: reach.safe for name, reach in reached.items()}

    def _look_at_acks(self, reached: Mapping[str, Reach]) -> None:
        """An operator may have moved on the ack of a partition that stands still: claim it anew."""
        still = [name for name, reach in reached.items() if reach.held]
        if still and self._clock() >= self._next_look:
            self._next_look = self._clock() + LOOK_SECONDS
            with contextlib.suppress(UnavailableError):
                self._acks.require_ours(still)

    def _mark_replayed(self, reached: Mapping[str, Reach]) -> None:
        """An earlier owner may have delivered, without acking, what was safe when we claimed, also
        what cannot be read now."""
        if self._pipeline.spec.delivery != "at-least-once":
            return
        for name in reached.keys() & self._acks.inherited - self._replayed_below.keys():
            reach = reached[name]
            self._replayed_below[name] = reach.safe + reach.held


def _show(outcome: Sequence[Written], identity: BatchId | None) -> None:
    for part in outcome:
        if part.commit is not None:
            part.commit(identity)


def _identity(decided: Intent) -> BatchId:
    return BatchId(decided.series, decided.number)


def _ranges(decided: Intent, *, replayed: bool = False) -> tuple[Range, ...]:
    pieces = sorted(decided.ranges.items())
    return tuple(Range(name, *bounds, replayed=replayed) for name, bounds in pieces)


def _can_be_read(ranges: Sequence[Range], safe: Mapping[str, int]) -> bool:
    return all(safe.get(piece.partition, 0) >= piece.end for piece in ranges)
