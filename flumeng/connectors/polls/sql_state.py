"""How far rows are taken: what a poll of a database goes on from.

A number is drawn before its row can be seen, so a number that is missing may still come, as long as
the transaction that has drawn it may be open. A *mark* is the greatest number that was seen at
some time. All numbers below it had been drawn by then, so when the mark is as old as a transaction
may be, what is still missing below it never comes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from flumeng.platform.errors import CorruptError, UserError

MARKS = 16
"""So many marks there are within the time that a transaction may be open: a row waits for up to a
sixteenth longer."""

Mark = tuple[int, int]
"""When, in microseconds of the database's clock, and the number."""


_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class State:
    """All rows with ``value`` or less are taken; with a ``key``, of those that have the same value
    those up to it in the column ``keyed_by``. A value is the text that the database has of it."""

    column: str
    value: str | None = None
    key: str | int | None = None
    keyed_by: str | None = None
    marks: tuple[Mark, ...] = ()

    @classmethod
    def of(cls, text: str, column: str, key: str | None = None) -> State:
        """Raises CorruptError, and UserError when it is of other columns."""
        if not text:
            return cls(column)
        try:
            found = json.loads(text)
            marks = tuple((int(when), int(number)) for when, number in found.get("marks", ()))
            keyed = found.get("key"), found.get("keyed_by")
            state = cls(found["column"], found.get("value"), *keyed, marks)
        except _DAMAGE as error:
            raise CorruptError(f"the state of the poll cannot be read: {text[:200]}") from error
        if state.column != column or state.keyed_by not in (None, key):
            before = f"{state.column} and {state.keyed_by}" if state.keyed_by else state.column
            raise UserError(
                f"rows were taken by {before} so far, and cannot be gone on with in another way: "
                "take the change of `track` back, or make another flow that begins there"
            )
        return state

    @property
    def text(self) -> str:
        kept = {name: value for name, value in vars(self).items() if value not in (None, ())}
        return json.dumps(kept)


def marked(marks: Sequence[Mark], now_us: int, top: int, settle_us: int) -> tuple[Mark, ...]:
    """The same with ``top``, which is seen now, unless there is a mark that is about as old."""
    kept = [(min(when, now_us), number) for when, number in marks]
    if not kept or (top > kept[-1][1] and now_us - kept[-1][0] >= settle_us // MARKS):
        kept.append((now_us, top))
    return tuple(kept)


def settled(marks: Sequence[Mark], now_us: int, settle_us: int) -> int | None:
    """The number up to which none that is missing comes any more."""
    old = [number for when, number in marks if now_us - when >= settle_us]
    return max(old, default=None)


def complete(
    numbers: Sequence[int], below: int | None, settled_to: int | None
) -> tuple[int, int | None]:
    """How many of the first ``numbers``, which grow, can be taken, and up to which number all is
    then taken. All is up to ``below``."""
    for count, number in enumerate(numbers):
        if settled_to is not None and number > settled_to:
            below = settled_to if below is None else max(below, settled_to)
        waits = settled_to is None or number > settled_to
        if waits and (below is None or number != below + 1):
            return count, below
        below = number
    return len(numbers), below
