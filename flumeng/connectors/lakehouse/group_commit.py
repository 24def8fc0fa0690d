"""One commit of a table for all tasks of a collector that have files for it.

Rules
1. One commit of a table is under way at a time. Tasks that come meanwhile gather, and one of them
   commits for all, as appends to a journal share an ``fdatasync``.
2. A task that has the table to itself waits for nothing. Where other tasks of the collector write
   into it, a commit leaves when all of them wait or many do, or ``GATHER_SECONDS`` after it could
   leave and ``GAP_SECONDS`` after the last one left.
3. A group is fenced as each member is. The numbers of all members are looked for through the handle
   through which the group is committed. Another owner of a member's task has committed the batch
   before the handle was made, and then the look finds the number and leaves that member out; or
   after it, and then the table refuses the commit of the whole group, which looks again. No member
   needs its epoch for that, nor does it matter which of them commits.
4. A group that fails commits nothing or all. It breaks up then, and each member commits by itself:
   an error of one member ends as that member's error. A commit of unknown outcome is settled by the
   look too.
5. A member waits for a bounded time. What it has handed over may be committed later, as after any
   answer that is lost.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakValueDictionary

from flumeng.connectors.api.sink import BatchId
from flumeng.connectors.lakehouse.table_files import TableFile
from flumeng.platform.errors import UnavailableError

GATHER_SECONDS = 0.1
GAP_SECONDS = 1.0
"""A batch takes longer, and the next one is written while this one waits."""
MANY_CALLS = 24
"""Half of the turns that a collector takes at once."""


@dataclass(frozen=True, eq=False)
class Addition:
    """The files, at least one, that a task adds to a table for one batch."""

    files: Sequence[TableFile]
    batch: BatchId | None


Add = Callable[[Sequence[Addition]], Collection[Addition]]
"""Commits additions to the table at once, and gives those that do not fit it; see ``Table.add``."""


def to_commit(
    additions: Iterable[Addition],
    last: Callable[[str], int | None],
    fits: Callable[[Sequence[TableFile]], bool],
) -> tuple[list[Addition], list[Addition]]:
    """Splits additions into those to commit and those that do not fit the table.

    Those that are in the table already are in neither list.

    ``last`` gives the number of a series that the table has. An owner that was overtaken may be in
    a group with its successor: of two with the same number one is committed.
    """
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
    """Series -> the last number that the table has with ``additions``."""
    batches = (one.batch for one in additions)
    return {batch.series: batch.number for batch in batches if batch is not None}


@dataclass(eq=False)
class _Call:
    """``alone``: its group has failed with ``error``. ``settled``: its outcome does not change."""

    addition: Addition
    task: str
    deadline: float
    alone: bool = False
    settled: bool = False
    fits: bool = True
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.settled, self.error = True, error


class GroupCommit:
    """The commits of one table by the sinks of this process. Used by any number of threads; it has
    none of its own. ``clock`` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._news = threading.Condition()
        self._waiting: list[_Call] = []
        self._under_way = False
        self._left_at = -math.inf
        self._tasks: WeakKeyDictionary[object, str] = WeakKeyDictionary()

    def join(self, sink: object, task: str) -> None:
        """Commits wait for ``task`` too, as long as there is its ``sink``."""
        with self._news:
            self._tasks[sink] = task

    def commit(self, addition: Addition, task: str, add: Add, patience_seconds: float) -> bool:
        """Commit ``addition``, with what other tasks have. False: it does not fit the table.

        ``add`` is the caller's own way to commit, for itself and for others. Raises what that
        raises; UnavailableError when it was not committed in time.
        """
        call = _Call(addition, task, self._clock() + patience_seconds)
        with self._news:
            self._waiting.append(call)
            self._news.notify_all()
        while self._leads(call):
            self._lead(call, add)
        if call.error is not None:
            raise call.error
        return call.fits

    def _leads(self, call: _Call) -> bool:
        """Waits until ``call`` may lead a commit (True) or is settled (False)."""
        with self._news:
            self._news.wait_for(
                lambda: call.settled or not self._under_way, call.deadline - self._clock()
            )
            if not call.settled and (self._under_way or self._clock() >= call.deadline):
                if call in self._waiting:
                    self._waiting.remove(call)
                late = UnavailableError("the table takes too long for the commits of all tasks")
                call.fail(call.error or late)
            self._under_way |= not call.settled
            return not call.settled

    def _lead(self, call: _Call, add: Add) -> None:
        """One commit. Nothing else is under way."""
        calls = [call]
        try:
            calls = self._take(call)
            unfit = add([one.addition for one in calls])
        except Exception as error:
            self._end(calls, error)
        except BaseException as error:
            call.settled = True
            self._end(calls, UnavailableError(f"the commit was cut off: {error!r}"))
            raise
        else:
            for one in calls:
                one.fits = one.addition not in unfit
            self._end(calls)

    def _take(self, call: _Call) -> list[_Call]:
        """Takes the calls of the next commit out of those that wait; ``call`` is one of them."""
        with self._news:
            now = self._clock()
            if not call.alone:
                until = max(now + GATHER_SECONDS, self._left_at + GAP_SECONDS)
                self._news.wait_for(self._all_wait, until - now)
            calls = [call] if call.alone else self._together()
            self._waiting = [one for one in self._waiting if one not in calls]
            self._left_at = self._clock()
            return calls

    def _together(self) -> list[_Call]:
        return [one for one in self._waiting if not one.alone]

    def _all_wait(self) -> bool:
        calls = self._together()
        return len(calls) >= MANY_CALLS or {one.task for one in calls} >= {*self._tasks.values()}

    def _end(self, calls: Sequence[_Call], error: Exception | None = None) -> None:
        """Settles ``calls``, or lets each commit alone after an error of a group. Calls that have
        given up are settled already."""
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
    """This process's group commit for ``table``, a key made of its address and its options."""
    with _lock:
        found = _of_tables.get(table)
        if found is None:
            found = _of_tables[table] = GroupCommit()
        return found
