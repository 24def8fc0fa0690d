"""The answers of a lane, as ranges see them: an offset is a due time's number and a row of it.

How many rows an answer has is known, so ranges are cut exactly.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from flumeng.state import items
from zkschema.records import Polls


@dataclass(frozen=True)
class KeptAnswer:
    """The answer to the due time with this ``number``: ``rows`` in ``file``, which is empty where
    there is none. ``due_us``: microseconds since the epoch."""

    number: int
    due_us: int
    rows: int
    file: str

    @property
    def start(self) -> int:
        return items.offset_of(self.number)

    @property
    def end(self) -> int:
        return items.offset_of(self.number + 1)


def kept(polls: Polls) -> list[KeptAnswer]:
    columns = zip(polls.due, polls.rows, polls.files, strict=True)
    return [KeptAnswer(number, *one) for number, one in enumerate(columns, polls.first)]


def following(polls: Polls) -> int:
    """The number of the due time that is asked next."""
    return polls.first + len(polls.due)


def polls_of(answers: Sequence[KeptAnswer], number: int, state: str) -> Polls:
    """``number`` is asked next, from ``state`` on."""
    return Polls(
        first=number - len(answers),
        due=tuple(one.due_us for one in answers),
        rows=tuple(one.rows for one in answers),
        files=tuple(one.file for one in answers),
        state=state,
    )


def encode(answers: Sequence[KeptAnswer]) -> str:
    """As an address for readers: those that have rows."""
    fields = [[one.number, one.due_us, one.rows, one.file] for one in answers if one.rows]
    return json.dumps(fields, separators=(",", ":"))


def decode(address: str) -> list[KeptAnswer]:
    return [KeptAnswer(*fields) for fields in json.loads(address)]


class AnswerContents:
    """See ``Contents``. ``answers`` follow each other without a gap."""

    def __init__(self, answers: Sequence[KeptAnswer]) -> None:
        self._answers = answers

    def events(self, start: int, end: int) -> int:
        return max(1, self._below(end) - self._below(start)) if start < end else 0

    def cut(self, start: int, end: int, events: int) -> int:
        wanted = self._below(start) + max(1, events)
        place = bisect_right(self._borders, wanted) - 1
        if place >= len(self._answers):
            return end
        row = wanted - self._borders[place]
        return min(end, self._answers[place].start + row)

    def address(self, start: int, end: int) -> str:
        return encode([one for one in self._answers if one.start < end and one.end > start])

    @cached_property
    def _borders(self) -> list[int]:
        """How many rows lie before each answer, and before the end."""
        return list(accumulate((one.rows for one in self._answers), initial=0))

    def _below(self, offset: int) -> int:
        if not self._answers:
            return 0
        place = items.number_of(offset) - self._answers[0].number
        if place < 0:
            return 0
        if place >= len(self._answers):
            return self._borders[-1]
        return self._borders[place] + min(items.position_of(offset), self._answers[place].rows)
