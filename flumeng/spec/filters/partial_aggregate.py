"""The options of the filter ``partial_aggregate``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.spec.functions import DATE, FRACTION, INTEGER, TIMESTAMP
from flumeng.spec.kinds import (
    EVENT,
    Columns,
    Kind,
    check_column,
    require_column,
    require_keys,
    require_new,
)
from flumeng.spec.option import option

_VALUE = re.compile(r"(?P<function>count|sum|min|max)(?:\((?P<column>[^()]+)\))?", re.ASCII)
_OF: Mapping[str, frozenset[str]] = {
    "sum": frozenset({INTEGER, FRACTION}),
    "min": frozenset({INTEGER, FRACTION, TIMESTAMP, DATE}),
    "max": frozenset({INTEGER, FRACTION, TIMESTAMP, DATE}),
}
IDENTITY = ("journal", "seq", "replayed")


@dataclass(frozen=True)
class Value:
    """A ``function`` of a column; without one all rows are counted."""

    function: str
    column: str | None


def value(text: str) -> Value:
    """Raises ValueError."""
    match = _VALUE.fullmatch(text.strip())
    if match is None or (match["column"] is None and match["function"] != "count"):
        raise ValueError(f"expected count, count(x), sum(x), min(x) or max(x), not {text}")
    column = match["column"]
    return Value(match["function"], None if column is None else column.strip())


@dataclass(frozen=True)
class PartialAggregate:
    """Sums up the events of each key and window of event time, as far as one split of a batch has
    them.

    A key and window has several rows, which whoever reads adds up: counts and sums by a sum, the
    least and the greatest by the same. A row is of the first of its events.
    """

    unconditional: ClassVar[str] = "put a where before it, or a branch around it"
    regroups: ClassVar[bool] = True

    values: Mapping[str, str] = option(
        doc="The columns to make: `count`, `count(x)` of those that are not null, `sum(x)`, "
        "`min(x)`, `max(x)`.",
        check=check_column,
        example='{n: count, bytes: "sum(bytes)"}',
    )
    by: tuple[str, ...] = option(
        doc="The columns of the key; without any there is one key.",
        example="[host, app]",
        default=(),
    )
    window_seconds: float = option(
        doc="The length of a window of `ts`, which is its beginning behind the filter; windows "
        "begin at 1970.",
        unit="seconds",
        minimum=0.001,
        maximum=366 * 86_400,
        default=60.0,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.values:
            yield "values", "expected a column at least"
        for name, text in self.values.items():
            try:
                value(text)
            except ValueError as error:
                yield f"values.{name}", str(error)

    def behind(self, columns: Columns) -> Columns:
        if columns.get("ts") != Kind(TIMESTAMP):
            raise ValueError("needs the column ts: put select behind it, or keep ts")
        if "ts" in self.by:
            raise ValueError("ts is in the key already, by its window")
        require_keys(columns, self.by)
        found = {"ts": columns["ts"], **{name: columns[name] for name in self.by}}
        for name in IDENTITY:
            if name in self.by or columns.get(name) != EVENT[name]:
                continue
            found[name] = columns[name]
        for name, text in self.values.items():
            require_new(found, [name])
            found[name] = _kind(value(text), columns)
        return found


def _kind(of: Value, columns: Columns) -> Kind:
    if of.column is None:
        return Kind(INTEGER)
    kind = require_column(columns, of.column).name
    if of.function == "count":
        return Kind(INTEGER)
    if kind not in _OF[of.function]:
        allowed = ", ".join(sorted(_OF[of.function]))
        raise ValueError(f"{of.function}({of.column}): expected one of {allowed}, not a {kind}")
    return Kind(kind)
