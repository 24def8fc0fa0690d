"""The batch loop of one task, from a claim until the task is wanted otherwise or something fails.

Rules
1. Nothing is read, staged or acked before the partitions are claimed and what an earlier owner left
   is cleared up. Whatever fails, the next thing is to claim anew: that settles every write whose
   outcome is unknown.
2. A batch is an exact set of ranges. Its acks move before its write (at most once), after it is
   shown (at least once), or in one transaction with the decision to show it (exactly once).
3. Batches may be written two at a time; they are committed one by one, in order, and never past
   one that failed. At most once writes one at a time, so that a crash loses no more than that.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from flumeng.collector.acks import Acks
from flumeng.collector.commit import Commits, OpenStore
from flumeng.collector.pipeline import Pipeline
from flumeng.collector.positions import Reach
from flumeng.collector.publisher import Publisher
from flumeng.collector.ranges import BatchSize, Range, backlog, next_ranges
from flumeng.errors import UnavailableError
from flumeng.sinks import Written, file_store
from flumeng.store import Store

log = logging.getLogger(__name__)

BATCHES_AT_ONCE = 2
POLL_SECONDS = 0.1
CANCEL_SECONDS = 60.0
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
    """Tells how far journals can be read now; see ``Journals``."""

    def of(self, starts: Mapping[str, int]) -> dict[str, Reach]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Batch:
    """``written`` gives what the sinks made of it, and when that began and ended."""

    ranges: tuple[Range, ...]
    staging: Mapping[str, str]
    written: Future[tuple[list[Written], float, float]]

    @property
    def events(self) -> int:
        return sum(r.events for r in self.ranges)


class Task:
    """One claim of a task's partitions, and the batches under it. Used by one thread.

    ``planned``: where the next batch starts, per partition; never below the ack.
    ``size`` outlives the claim, since what it has learned stays true.
    """

    def __init__(
        self,
        assignment: Assignment,
        store: Store,
        publisher: Publisher,
        pipeline: Pipeline,
        journals: Readable,
        *,
        size: BatchSize,
        clock: Callable[[], float] = time.monotonic,
        open_store: OpenStore = file_store.open_store,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._journals = journals
        self._size = size
        self._clock = clock
        self._running: deque[Batch] = deque()
        at_most_once = pipeline.spec.delivery == "at-most-once"
        self._batches_at_once = 1 if at_most_once else BATCHES_AT_ONCE
        self._pool = ThreadPoolExecutor(BATCHES_AT_ONCE, assignment.key)
        self._last_end = 0.0
        self._caught_up = False
        self._next_look = -math.inf
        self._commits = Commits(store, assignment.flow, assignment.task, open_store)
        leftovers = self._commits.leftovers(pipeline.roots, assignment.partitions)
        self._acks = Acks.claim(
            store, publisher, assignment.flow, assignment.epoch, assignment.partitions
        )
        self._commits.recover(leftovers)
        inherited = bool(self._acks.inherited)  # what is there has waited for an owner long enough
        self._waiting_since: float | None = -math.inf if inherited else None
        self.planned = dict(self._acks.offsets)
        self._replayed_below: dict[str, int] = {}

    @property
    def caught_up(self) -> bool:
        """Whether, when last asked, all journals were reachable and all that can be read of them
        was acked."""
        return self._caught_up and not self._running

    @property
    def proven(self) -> bool:
        """Whether this claim has committed a batch, or has found that there is none to do."""
        return self._last_end > 0 or self._caught_up

    @property
    def running(self) -> bool:
        """Whether a batch is being written or waits to be committed."""
        return bool(self._running)

    def turn(self, *, eager: bool) -> bool:
        """Start a batch if one is due, else commit the oldest if it is written.

        ``eager`` does not wait for events to gather. Returns False when there was nothing to do.
        Raises what the pipeline, the store or the lake raise; then the claim is of no more use.
        """
        if len(self._running) < self._batches_at_once and (due := self._due(eager=eager)):
            self._start(*due)
            return True
        return self.commit_next()

    def commit_next(self) -> bool:
        """Commit the oldest batch if it is written within ``POLL_SECONDS``."""
        if not self._running or not self._store.connected:
            return False
        if wait([self._running[0].written], POLL_SECONDS).done:
            self._commit(self._running.popleft())
        return True

    def abandon(self) -> None:
        """Stop what runs, and wait for it. Batches that are not committed were never decided."""
        self._pipeline.cancel()
        wait([batch.written for batch in self._running], CANCEL_SECONDS)
        self._running.clear()

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self._journals.close()

    def _due(self, *, eager: bool) -> tuple[tuple[Range, ...], dict[str, str]] | None:
        """The next batch and where to read it, when there is enough or it has waited enough."""
        if not self._store.connected:
            return None
        reached = self._journals.of(self.planned)
        self._look_at_acks(reached)
        safe = {journal: reach.safe for journal, reach in reached.items()}
        self._mark_replayed(reached)
        waiting = backlog(self.planned, safe)
        self._caught_up = waiting == 0 and len(reached) == len(self.planned)
        if waiting == 0:
            self._waiting_since = None
            return None
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        aged = now - self._waiting_since >= self._pipeline.spec.batch.seconds
        if not (eager or aged or waiting >= self._size.events):
            return None
        self._waiting_since = None
        ranges = next_ranges(self.planned, safe, self._size.events, self._replayed_below)
        return ranges, {piece.journal: reached[piece.journal].address for piece in ranges}

    def _look_at_acks(self, reached: Mapping[str, Reach]) -> None:
        """An operator may have moved on the ack of a journal that stands still: claim it anew."""
        still = [journal for journal, reach in reached.items() if reach.held]
        if still and self._clock() >= self._next_look:
            self._next_look = self._clock() + LOOK_SECONDS
            with contextlib.suppress(UnavailableError):
                self._acks.require_ours(still)

    def _mark_replayed(self, reached: Mapping[str, Reach]) -> None:
        """An earlier owner may have delivered, without acking, what was safe when we claimed, also
        what cannot be read now."""
        if self._pipeline.spec.delivery != "at-least-once":
            return
        for journal in reached.keys() & self._acks.inherited - self._replayed_below.keys():
            reach = reached[journal]
            self._replayed_below[journal] = reach.safe + reach.held

    def _start(self, ranges: tuple[Range, ...], addresses: Mapping[str, str]) -> None:
        if self._pipeline.spec.delivery == "at-most-once":
            self._acks.advance(ranges)
        self.planned.update((piece.journal, piece.end) for piece in ranges)
        staging = {
            root: self._commits.stage(root, ranges[0].journal, self._acks.epoch)
            for root in self._pipeline.roots
        }
        written = self._pool.submit(self._write, ranges, addresses, staging)
        self._running.append(Batch(ranges, staging, written))

    def _write(
        self, ranges: Sequence[Range], addresses: Mapping[str, str], staging: Mapping[str, str]
    ) -> tuple[list[Written], float, float]:
        began = self._clock()
        written = self._pipeline.write(ranges, addresses, staging)
        return written, began, self._clock()

    def _commit(self, batch: Batch) -> None:
        written, began, ended = batch.written.result()
        files = [move for part in written for move in part.files]
        staging = list(batch.staging.values())
        if self._pipeline.spec.delivery == "exactly-once":
            self._commits.commit(self._acks, batch.ranges, staging, files)
        else:
            self._commits.publish(staging, files)
            if self._pipeline.spec.delivery == "at-least-once":
                self._acks.advance(batch.ranges)
        self._size.measured(batch.events, ended - max(began, self._last_end))
        self._last_end = ended
        log.debug("%d events in %.2f s, %d files", batch.events, ended - began, len(files))
