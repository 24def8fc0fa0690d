"""Selects dead letters by reason, place, revision and time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.platform.errors import UserError
from flumeng.platform.options.texts import time_of


@dataclass(frozen=True)
class Selection:
    """Criteria that a dead letter must all match. ``reason`` is a substring, ``place`` a prefix;
    ``since`` <= time of death < ``until``, in microseconds since the epoch."""

    reason: str = ""
    place: str = ""
    revision: int | None = None
    since: int | None = None
    until: int | None = None

    def mask(self, letters: pa.RecordBatch) -> pa.BooleanArray:
        """Return a mask without nulls of the selected ``letters`` (rows of a dead letter file)."""
        mask = pa.repeat(pa.scalar(value=True), letters.num_rows)
        if self.reason:
            mask = pc.and_(mask, pc.match_substring(letters["dead_reason"], self.reason))
        if self.place:
            mask = pc.and_(mask, pc.starts_with(letters["dead_place"], self.place))
        if self.revision is not None:
            mask = pc.and_(mask, pc.equal(letters["dead_revision"], self.revision))
        moments = letters["dead_time"].cast(pa.int64())
        if self.since is not None:
            mask = pc.and_(mask, pc.greater_equal(moments, self.since))
        if self.until is not None:
            mask = pc.and_(mask, pc.less(moments, self.until))
        return pc.fill_null(mask, fill_value=False)

    @property
    def timed(self) -> bool:
        return self.since is not None or self.until is not None

    def misses(self, first: int, last: int) -> bool:
        """Return whether no dead letter with a time from ``first`` to ``last`` can be selected."""
        early = self.since is not None and last < self.since
        return early or (self.until is not None and first >= self.until)

    def __str__(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value not in ("", None)}
        return json.dumps(given, ensure_ascii=False)

    @property
    def words(self) -> str:
        """The criteria, for the audit log, like `` (place=filters)``; empty without criteria."""
        given = json.loads(str(self))
        return (
            f" ({', '.join(f'{name}={value}' for name, value in given.items())})" if given else ""
        )

    @classmethod
    def parse(cls, text: str) -> Selection:
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)


def moment(option: str, text: str) -> int | None:
    """Return a time in microseconds since the epoch; None for an empty text. Raises UserError."""
    if not text:
        return None
    try:
        return round(time_of(text).timestamp() * 1e6)
    except ValueError as error:
        raise UserError(
            f"{option} {text}: expected a time with its zone, like 2026-11-22T08:00:00Z"
        ) from error
