"""Rows of a page, in the order in which the database has numbered them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.objects.parts import texts_of
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Found:
    """``cut``: there may be more rows than those."""

    rows: pa.Table
    cut: bool


class JdbcQuery(Protocol):
    def __call__(self, statement: str, most_bytes: int) -> Found:
        """The rows of a SELECT, up to those with which they are more than ``most_bytes``. Numbers
        that are too long for Arrow are texts in a column with the metadata ``json_text.NUMBER``.

        Raises UnavailableError and UserError.
        """

    def close(self) -> None:
        """End what is asked; from any thread."""


@dataclass(frozen=True)
class Page:
    """Rows in order, with the value and the key of each; there are no keys when none was asked
    for. ``full``: others may follow."""

    rows: pa.Table
    values: list[str]
    keys: list[str | int]
    full: bool

    @classmethod
    def of(cls, found: Found, count: int, *, keyed: bool) -> Page | None:
        """What was found of the first ``count`` rows. Their last columns are the value, the key
        when they are ``keyed``, and their number. None when it is not the first rows: then it is
        too much at once."""
        rows = found.rows.take(pc.sort_indices(found.rows.column(-1)))
        if rows.column(-1).to_pylist() != list(range(1, rows.num_rows + 1)):
            return None
        helpers = 3 if keyed else 2
        plain = rows.select(range(rows.num_columns - helpers))
        keys = _keys(rows.column(-2)) if keyed else []
        values = rows.column(-helpers).to_pylist()
        return cls(plain, values, keys, found.cut or rows.num_rows >= count)

    def first(self, count: int) -> Page:
        rows = self.rows.slice(0, count)
        return replace(self, rows=rows, values=self.values[:count], keys=self.keys[:count])

    @property
    def groups_end(self) -> int:
        """Where the rows with the last value begin, some of which may be missing; 0 when all have
        it."""
        return self.values.index(self.values[-1]) if self.values else 0

    @property
    def twice(self) -> tuple[str, str | int] | tuple[str] | None:
        """What two rows have both."""
        if self.keys:
            pairs = list(zip(self.values, self.keys, strict=True))
            return next((one for one, other in pairwise(pairs) if one == other), None)
        return next(((one,) for one, other in pairwise(self.values) if one == other), None)

    def without_last(self) -> Page:
        """Of a full page, which is asked for again with those that follow."""
        return self.first(len(self.values) - 1) if self.full and len(self.values) > 1 else self


def bodies_of(rows: pa.Table) -> pa.BinaryArray:
    """Each row as JSON."""
    texts = [text for batch in rows.to_batches() for text in texts_of(batch)]
    return pa.concat_arrays(texts) if texts else pa.array([], pa.binary())


def _keys(column: pa.ChunkedArray) -> list[str | int]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        raise UserError(f"`track: key` is a column with {kind}: expected numbers or texts")
    found: list[str | int] = column.to_pylist()
    if column.null_count:
        raise UserError("`track: key` is a column with nulls: expected one that is unique")
    return found
