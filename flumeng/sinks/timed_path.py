"""Paths with the event's time in them: ``/lake/dt=%Y-%m-%d/hour=%H``, in UTC, of whole batches.

The part before the first pattern is fixed: the root, under which staging lies too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.errors import UserError
from flumeng.spec.patterns import split_query

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNITS_MICROSECONDS = {"%M": 60_000_000, "%H": 3_600_000_000}
DAY_MICROSECONDS = 86_400_000_000
EARLIEST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_PATTERN = re.compile("%[YmdHM]")


class TimedPath:
    """``root`` is the directory before the first time pattern, without a slash at its end."""

    def __init__(self, path: str) -> None:
        path, self._query = split_query(path)
        self._path = path.rstrip("/")
        used = set(_PATTERN.findall(path))
        self.timed = bool(used)
        fixed = self._path.partition("%")[0].rpartition("/")[0] if used else self._path
        self.root = fixed + self._query
        self._unit = min((UNITS_MICROSECONDS.get(u, DAY_MICROSECONDS) for u in used), default=0)
        self._known: dict[int, str] = {}

    def split(self, batch: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Directories and the rows of ``batch`` that go there, in their order.

        An event without a time goes where 1970 is. Raises UserError when the batch has no ``ts``.
        """
        if not batch.num_rows:
            return
        if not self.timed:
            yield self.root, batch
            return
        if "ts" not in batch.schema.names or not pa.types.is_timestamp(batch["ts"].type):
            raise UserError(f"files: {self._path} needs the column ts, which select has dropped")
        micros = pc.fill_null(batch["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 0)
        periods = np.clip(micros.to_numpy(), EARLIEST, LATEST) // self._unit
        if periods.min() == periods.max():
            yield self._directory(int(periods[0])), batch
            return
        order = np.argsort(periods, kind="stable")
        grouped = batch.take(pa.array(order))
        starts = np.flatnonzero(np.diff(periods[order], prepend=periods.min() - 1))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            yield self._directory(int(periods[order[start]])), grouped.slice(start, end - start)

    def _directory(self, period: int) -> str:
        known = self._known.get(period)
        if known is None:
            moment = EPOCH + timedelta(microseconds=max(period * self._unit, EARLIEST))
            path = _PATTERN.sub(lambda m: _digits(moment, m[0]), self._path)
            known = self._known[period] = path + self._query
        return known


def _digits(moment: datetime, pattern: str) -> str:
    if pattern == "%Y":
        return f"{moment.year:04d}"
    numbers = {"%m": moment.month, "%d": moment.day, "%H": moment.hour, "%M": moment.minute}
    return f"{numbers[pattern]:02d}"
