"""Directories that depend on events, such as ``/lake/dt=%Y-%m-%d/app={app}``, with times in UTC and
values as Hive writes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.platform.errors import UserError
from flumeng.platform.options.patterns import FIELD, fixed_part, split_query

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNITS_MICROSECONDS = {"%M": 60_000_000, "%H": 3_600_000_000}
DAY_MICROSECONDS = 86_400_000_000
EARLIEST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_TIME = re.compile("%[YmdHM]")

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class PatternPath:
    """A path with patterns. ``root``: the directory before the first pattern, and the query."""

    def __init__(self, path: str) -> None:
        path, self._query = split_query(path)
        self._path = path.rstrip("/")
        used = set(_TIME.findall(path))
        self._timed = bool(used)
        self._fields = tuple(dict.fromkeys(FIELD.findall(path)))
        fixed = fixed_part(self._path)
        self.root = (fixed if fixed == self._path else fixed.rpartition("/")[0]) + self._query
        self._unit = min((UNITS_MICROSECONDS.get(u, DAY_MICROSECONDS) for u in used), default=0)
        self._directories: dict[int, str] = {}

    def split(self, batch: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield each directory with its rows of ``batch`` in their order; rows without a time go to
        1970. Raises UserError when a column of the path is missing, or ``ts`` is no time."""
        if not batch.num_rows:
            return
        periods = self._periods(batch) if self._timed else np.zeros(batch.num_rows, np.int64)
        fields = [self._field(batch, name) for name in self._fields]
        groups = _combined([periods, *(numbers for numbers, _ in fields)])

        def directory(row: int) -> str:
            names = zip(self._fields, fields, strict=True)
            values = {name: texts[numbers[row]] for name, (numbers, texts) in names}
            return self._directory(int(periods[row]), values)

        if groups.min() == groups.max():
            yield directory(0), batch
            return
        order = np.argsort(groups, kind="stable")
        grouped = batch.take(pa.array(order))
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            yield directory(int(order[start])), grouped.slice(start, end - start)

    def _periods(self, batch: pa.Table) -> Numbers:
        if "ts" not in batch.schema.names or not pa.types.is_timestamp(batch["ts"].type):
            raise UserError(f"files: the path {self._path} needs the column ts, a time: keep it")
        micros = pc.fill_null(batch["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 0)
        periods: Numbers = np.clip(micros.to_numpy(), EARLIEST, LATEST) // self._unit
        return periods

    def _field(self, batch: pa.Table, name: str) -> tuple[Numbers, list[str]]:
        if name not in batch.schema.names:
            raise UserError(f"files: the path {self._path} needs the column {name}: keep it")
        texts = pc.fill_null(batch[name].cast(pa.string()), "").combine_chunks()
        encoded = texts.dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        numbers = encoded.indices.to_numpy().astype(np.int64)
        return numbers, [hive_name(text) for text in encoded.dictionary.to_pylist()]

    def _directory(self, period: int, values: dict[str, str]) -> str:
        timed = self._directories.get(period)
        if timed is None:
            moment = EPOCH + timedelta(microseconds=max(period * self._unit, EARLIEST))
            timed = _TIME.sub(lambda m: _digits(moment, m[0]), self._path)
            self._directories[period] = timed
        return FIELD.sub(lambda m: values[m[1]], timed) + self._query


def _combined(keys: list[Numbers]) -> Numbers:
    groups: Numbers = keys[0] - keys[0].min()
    for key in keys[1:]:
        _, groups = np.unique(groups, return_inverse=True)
        groups = groups * (int(key.max()) + 1) + key
    return groups


def _digits(moment: datetime, pattern: str) -> str:
    if pattern == "%Y":
        return f"{moment.year:04d}"
    numbers = {"%m": moment.month, "%d": moment.day, "%H": moment.hour, "%M": moment.minute}
    return f"{numbers[pattern]:02d}"


NOTHING = "__HIVE_DEFAULT_PARTITION__"
MOST_BYTES = 200
"""Most bytes of a name: file systems allow 255."""
_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{}\[\]^]|^[._]""")


def hive_name(value: str) -> str:
    """Escape a value for a path, also a leading dot or underscore, since readers skip such names.
    An empty value becomes NOTHING; a long one is cut and ends with its hash."""
    if not value:
        return NOTHING
    name = _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)
    if len(name.encode()) <= MOST_BYTES:
        return name
    digest = hashlib.blake2b(value.encode(), digest_size=8).hexdigest()
    kept = name.encode()[: MOST_BYTES - 17].decode("utf-8", "ignore")
    return f"{re.sub('%[0-9A-F]?$', '', kept)}~{digest}"
