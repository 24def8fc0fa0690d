"""Group commit: one commit of a table for all tasks of a collector that have files for it.

Rules
1. One commit of a table runs at a time. Meanwhile other tasks wait, and one of them then commits
   for all.
2. A single task never waits. With other tasks, a commit starts when all or many of them wait, or
   after ``gather_seconds`` and at least ``gap_seconds`` after the start of the last one.
3. Each member of a group is fenced by its batch number. All numbers are read through the handle
   that commits the group. If another owner of a member's task committed the batch before the handle
   was made, the number shows it, and the member is left out. If that owner commits afterwards, the
   table rejects the group's commit, and the numbers are reread. So any member may commit, and needs
   no epoch.
4. A group commits all or nothing. After an error each member commits alone, so that an error of one
   member affects no other. The numbers also settle a commit of unknown outcome.
5. A member waits for a bounded time. Its files may still be committed later, as after any lost
   answer.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakValueDictionary

from flumeng.connectors.api.sink import BatchId
from flumeng.connectors.lakehouse.table_files import TableFile
from flumeng.platform.errors import UnavailableError

MANY_CALLS = 24
"""Waiting calls that start a commit: half of a collector's slots."""


@dataclass(frozen=True, eq=False)
class Addition:
    """The files of one batch of a task, to be added to the table."""

    files: Sequence[TableFile]
    batch: BatchId | None


Add = Callable[[Sequence[Addition]], Collection[Addition]]
"""Commits additions together, and returns those that do not fit the table; see ``Table.add``."""


def to_commit(
    additions: Iterable[Addition],
    last: Callable[[str], int | None],
    fits: Callable[[Sequence[TableFile]], bool],
) -> tuple[list[Addition], list[Addition]]:
    """Return the additions to commit, and those that do not fit; both without batches that the
    table has already. ``last`` returns a series' last number in the table. Of additions of the same
    batch, as by an old and a new owner, only the first that fits is committed."""
    taken: list[Addition] = []
    unfit: list[Addition] = []
    numbers: dict[str, int] = {}
    for addition in additions:
        batch = addition.batch
        if batch is not None:
            seen = numbers.get(batch.series, last(batch.series))
            if seen is not None and seen >= batch.number:
                continue
        if not fits(addition.files):
            unfit.append(addition)
            continue
        taken.append(addition)
        if batch is not None:
            numbers[batch.series] = batch.number
    return taken, unfit


def numbers(additions: Iterable[Addition]) -> dict[str, int]:
    """Return each series' last batch number among ``additions``."""
    batches = (addition.batch for addition in additions)
    return {batch.series: batch.number for batch in batches if batch is not None}


@dataclass(eq=False)
class _Call:
    """A task's call. ``alone``: its group failed with ``error``, so it commits without others.
    ``settled``: the outcome is final."""

    addition: Addition
    task: str
    deadline: float
    alone: bool = False
    settled: bool = False
    fits: bool = True
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.settled, self.error = True, error


@dataclass(eq=False)
class GroupCommit:
    """Commits of one table in this process. Thread-safe. ``clock``: monotonic seconds."""

    gather_seconds: float = 0.1
    gap_seconds: float = 1.0
    """Least time from start to start of commits, shorter than the writing of a batch: the next
    batch is written while a commit waits."""
    clock: Callable[[], float] = time.monotonic
    _news: threading.Condition = field(default_factory=threading.Condition)
    _waiting: list[_Call] = field(default_factory=list)
    _under_way: bool = False
    _left_at: float = -math.inf
    _tasks: WeakKeyDictionary[object, str] = field(default_factory=WeakKeyDictionary)

    def join(self, sink: object, task: str) -> None:
        """Let commits wait for ``task`` too, until its ``sink`` is garbage collected."""
        with self._news:
            self._tasks[sink] = task

    def commit(self, addition: Addition, task: str, add: Add, patience_seconds: float) -> bool:
        """Commit ``addition`` together with those of other tasks. Return whether it fits the table.
        Raises the errors of ``add``, and UnavailableError after waiting ``patience_seconds``."""
        call = _Call(addition, task, self.clock() + patience_seconds)
        with self._news:
            self._waiting.append(call)
            self._news.notify_all()
        while self._leads(call):
            self._lead(call, add)
        if call.error is not None:
            raise call.error
        return call.fits

    def _leads(self, call: _Call) -> bool:
        """Wait until ``call`` may lead a commit; return False when it is settled instead."""
        with self._news:
            self._news.wait_for(
                lambda: call.settled or not self._under_way, call.deadline - self.clock()
            )
            if not call.settled and (self._under_way or self.clock() >= call.deadline):
                if call in self._waiting:
                    self._waiting.remove(call)
                late = UnavailableError("the commits of tasks to the table take too long")
                call.fail(call.error or late)
            self._under_way |= not call.settled
            return not call.settled

    def _lead(self, call: _Call, add: Add) -> None:
        calls = [call]
        try:
            calls = self._take(call)
            unfit = add([member.addition for member in calls])
        except Exception as error:
            self._end(calls, error)
        except BaseException as error:
            call.settled = True
            self._end(calls, UnavailableError(f"a commit to the table was interrupted: {error!r}"))
            raise
        else:
            for member in calls:
                member.fits = member.addition not in unfit
            self._end(calls)

    def _take(self, call: _Call) -> list[_Call]:
        """Wait for other tasks; then return the waiting calls to commit together with ``call``.
        If ``call`` is to commit alone, return it without waiting."""
        with self._news:
            now = self.clock()
            if not call.alone:
                until = max(now + self.gather_seconds, self._left_at + self.gap_seconds)
                self._news.wait_for(self._all_wait, until - now)
            calls = [call] if call.alone else self._together()
            self._waiting = [waiting for waiting in self._waiting if waiting not in calls]
            self._left_at = self.clock()
            return calls

    def _together(self) -> list[_Call]:
        return [waiting for waiting in self._waiting if not waiting.alone]

    def _all_wait(self) -> bool:
        calls = self._together()
        return len(calls) >= MANY_CALLS or {call.task for call in calls} >= {*self._tasks.values()}

    def _end(self, calls: Sequence[_Call], error: Exception | None = None) -> None:
        """Settle ``calls``; after an error of a group each call commits alone."""
        with self._news:
            for call in calls:
                if call.settled:
                    continue
                call.error, call.alone = error, error is not None
                call.settled = error is None or len(calls) == 1
                if not call.settled:
                    self._waiting.append(call)
            self._under_way = False
            self._news.notify_all()


_of_tables: WeakValueDictionary[Hashable, GroupCommit] = WeakValueDictionary()
_lock = threading.Lock()


def of(table: Hashable) -> GroupCommit:
    """Return this process's group commit for a table, given by its address and options."""
    with _lock:
        return _of_tables.setdefault(table, GroupCommit())
