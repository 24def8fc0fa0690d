"""State of a database poll, and the limit up to which its rows are settled.

A number is drawn before its row is visible, so a missing number may still appear while its
transaction may be open. A *mark* is the greatest number seen at some time: all numbers below were
drawn by then. Once a mark is as old as a transaction may be, no missing number below it can appear.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from flumeng.platform.errors import CorruptError, UserError

MARKS = 16
"""Marks per settling time: rows wait at most a sixteenth longer."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTER = timedelta(minutes=15)
_SET_BACK = 12
"""Clocks are set back at full quarters of an hour, by fewer quarters than this."""
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
Mark = tuple[int, int]
"""Time by the database's clock in microseconds, and the greatest number seen then."""


@dataclass(frozen=True)
class State:
    """Poll state: all rows up to ``value`` are taken; with a ``key``, of the rows with ``value``
    only those up to it in the column ``keyed_by``. Values are texts in the database's format."""

    column: str
    value: str | None = None
    key: str | int | None = None
    keyed_by: str | None = None
    marks: tuple[Mark, ...] = ()

    @classmethod
    def of(cls, text: str, column: str, key: str | None = None) -> State:
        """Parse a state. Raises CorruptError, UserError when other columns were tracked."""
        if not text:
            return cls(column)
        try:
            stored = json.loads(text)
            marks = tuple((int(when), int(number)) for when, number in stored.get("marks", ()))
            keyed = stored.get("key"), stored.get("keyed_by")
            state = cls(stored["column"], stored.get("value"), *keyed, marks)
        except _DAMAGE as error:
            raise CorruptError(f"the state of the poll cannot be read: {text[:200]}") from error
        if state.column != column or state.keyed_by not in (None, key):
            before = f"{state.column} and {state.keyed_by}" if state.keyed_by else state.column
            raise UserError(
                f"rows are tracked by {before}, which cannot be changed: revert the change of "
                "`track`, or use another flow that begins there"
            )
        return state

    @property
    def text(self) -> str:
        kept = {name: value for name, value in vars(self).items() if value not in (None, ())}
        return json.dumps(kept)


def marked(marks: Sequence[Mark], now_us: int, top: int, settle_us: int) -> tuple[Mark, ...]:
    """Return ``marks``, with ``top`` as of now if it exceeds the last mark's number and that mark
    is old enough for another (see ``MARKS``). A mark's time is at most now."""
    kept = [(min(when, now_us), number) for when, number in marks]
    if not kept or (top > kept[-1][1] and now_us - kept[-1][0] >= settle_us // MARKS):
        kept.append((now_us, top))
    return tuple(kept)


def settled(marks: Sequence[Mark], now_us: int, settle_us: int) -> int | None:
    """Return the number up to which no missing number can appear any more; None when unknown."""
    old = [number for when, number in marks if now_us - when >= settle_us]
    return max(old, default=None)


def complete(
    numbers: Sequence[int], below: int | None, settled_to: int | None
) -> tuple[int, int | None]:
    """Return how many of the ascending ``numbers`` can be taken, and the number up to which all are
    taken then; ``below`` is the latter before."""
    for count, number in enumerate(numbers):
        if settled_to is not None and number > settled_to:
            below = settled_to if below is None else max(below, settled_to)
        waits = settled_to is None or number > settled_to
        if waits and (below is None or number != below + 1):
            return count, below
        below = number
    return len(numbers), below


def time_constant(moment: datetime, zone: ZoneInfo | None) -> str:
    """Return ``moment`` in a column's format: in ``zone``, or with its zone if that is None."""
    if zone is None:
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00"
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S.%f}"


def time_bound(moment: datetime, zone: ZoneInfo | None) -> str:
    """Return a lower bound of times written after ``moment``, also when the clock is set back."""
    if zone is None:
        return time_constant(moment, zone)
    quarter = EPOCH + (moment - EPOCH) // _QUARTER * _QUARTER
    later = [quarter + number * _QUARTER for number in range(1, _SET_BACK)]
    return min(time_constant(each, zone) for each in (moment, *later))
