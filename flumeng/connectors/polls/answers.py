"""The answers of a lane, as ranges see them: an offset is a due time's number and a row of it.

How many rows an answer has is known, so ranges are cut exactly.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from flumeng.control.snapshot import items
from flumeng.platform.errors import CorruptError
from zkschema.records import Polls


@dataclass(frozen=True)
class KeptAnswer:
    """What ``file`` has of the answer to the due time with this ``number``: so many ``rows`` from
    ``position`` on. ``due_us``: microseconds since the epoch."""

    number: int
    due_us: int
    position: int
    rows: int
    file: str

    @property
    def start(self) -> int:
        return items.offset_of(self.number, self.position)

    @property
    def end(self) -> int:
        return items.offset_of(self.number, self.position + self.rows)


def kept(polls: Polls) -> list[KeptAnswer]:
    """In the order of their offsets. Raises CorruptError when its columns do not fit together."""
    columns = polls.numbers, polls.due, polls.positions, polls.rows, polls.files
    if len({*map(len, columns)}) > 1:
        raise CorruptError("the record of polls has columns of several lengths")
    return [KeptAnswer(*fields) for fields in zip(*columns, strict=True)]


def columns_of(answers: Sequence[KeptAnswer]) -> dict[str, Any]:
    """The reverse: the columns of the record."""
    return {
        "numbers": tuple(one.number for one in answers),
        "due": tuple(one.due_us for one in answers),
        "positions": tuple(one.position for one in answers),
        "rows": tuple(one.rows for one in answers),
        "files": tuple(one.file for one in answers),
    }


def encode(answers: Sequence[KeptAnswer]) -> str:
    """As an address for readers."""
    return json.dumps([[*astuple(one)] for one in answers], separators=(",", ":"))


def decode(address: str) -> list[KeptAnswer]:
    """Raises CorruptError."""
    try:
        return [KeptAnswer(*fields) for fields in json.loads(address)]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"this is no list of answers: {address[:200]}") from error


class AnswerContents:
    """See ``Contents``. ``answers`` are in the order of their offsets."""

    def __init__(self, answers: Sequence[KeptAnswer]) -> None:
        self._answers = answers

    def events(self, start: int, end: int) -> int:
        return max(1, self._below(end) - self._below(start)) if start < end else 0

    def cut(self, start: int, end: int, events: int) -> int:
        wanted = self._below(start) + max(1, events)
        place = bisect_right(self._borders, wanted) - 1
        if place >= len(self._answers):
            return end
        return min(end, self._answers[place].start + wanted - self._borders[place])

    def address(self, start: int, end: int) -> str:
        return encode([one for one in self._answers if one.start < end and one.end > start])

    @cached_property
    def _borders(self) -> list[int]:
        """How many rows lie before each answer, and before the end."""
        return list(accumulate((one.rows for one in self._answers), initial=0))

    def _below(self, offset: int) -> int:
        """How many rows lie below the offset."""
        place = bisect_right(self._answers, offset, key=lambda one: one.start) - 1
        if place < 0:
            return 0
        answer = self._answers[place]
        return self._borders[place] + min(offset - answer.start, answer.rows)
