"""The options of ``aggregate``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import FilterOptions, problem_of
from flumeng.config.functions import DATE, FRACTION, INTEGER, TIMESTAMP
from flumeng.config.kinds import (
    EVENT,
    Columns,
    Kind,
    check_column,
    require_column,
    require_keys,
    require_new,
)
from flumeng.platform.options.option import option

_CALL = re.compile(r"(?P<function>[a-z_]+)\s*(?:\((?P<argument>.*)\))?", re.ASCII | re.DOTALL)
_ORDERED = frozenset({INTEGER, FRACTION, TIMESTAMP, DATE})
_OF: Mapping[str, frozenset[str]] = {
    "sum": frozenset({INTEGER, FRACTION}),
    "min": _ORDERED,
    "max": _ORDERED,
    "histogram": frozenset({INTEGER, FRACTION}),
}
FUNCTIONS = (*_OF, "count", "count_if")
INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("mean", "avg"), "make sum(x) and count(x), and divide their sums"),
    **dict.fromkeys(
        ("quantile", "percentile", "median", "percentile_approx"),
        "make histogram(x), and take quantiles of all rows of a window together",
    ),
}
"""Functions that need all events of a window at once."""
HISTOGRAM = Kind(
    "struct",
    (("values", Kind("array", (("", Kind(FRACTION)),))),
     ("counts", Kind("array", (("", Kind(INTEGER)),)))),
)  # fmt: skip
IDENTITY = ("journal", "seq", "replayed")


@dataclass(frozen=True)
class Value:
    """A ``function`` of a column or condition; ``count`` of all rows without."""

    function: str
    argument: str | None


def value(text: str) -> Value:
    match = _CALL.fullmatch(text.strip())
    function = match["function"] if match else ""
    argument = (match["argument"] or "").strip() if match else ""
    if function in INSTEAD:
        raise ValueError(
            f"{function} of a part of the events cannot be put together with that of others: "
            f"{INSTEAD[function]}"
        )
    if function == "count" and argument in ("", "*"):
        return Value("count", None)
    if function not in FUNCTIONS or not argument:
        raise ValueError(
            "expected count, count(x), count_if(condition), sum(x), min(x), max(x) or "
            f"histogram(x), not {text}"
        )
    return Value(function, argument)


@dataclass(frozen=True)
class Aggregate(FilterOptions):
    """Makes counts, sums, extremes and histograms of each key and window of event time, as far as
    one split of a batch has its events.

    A key and window has several rows, which the reader puts together: a late event is in one
    more row of its window. A row is of the first of its events.
    """

    implementation: ClassVar[str] = "flumeng.filters.aggregate:AggregateFilter"

    unconditional: ClassVar[str] = "put a where before it, or a branch around it"
    regroups: ClassVar[bool] = True

    values: Mapping[str, str] = option(
        doc="The columns to make: `count`, `count(x)` of those that are not null, "
        "`count_if(condition)`, `sum(x)`, `min(x)`, `max(x)`, and `histogram(x)` for quantiles.",
        check=check_column,
        example='{n: count, errors: "count_if(status >= 500)", took: "histogram(took_ms)"}',
    )
    by: tuple[str, ...] = option(
        doc="The columns of the key; without any there is one key.",
        example="[host, app]",
        default=(),
    )
    window_seconds: float = option(
        doc="The length of a window of `ts`, which is its beginning behind the filter; windows "
        "begin at 1970.",
        between=(0.001, 366 * 86_400),
        default=60.0,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.values:
            yield "values", "expected a column at least"
        for name, text in self.values.items():
            yield from problem_of(f"values.{name}", value, text)

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
    from flumeng.config import expressions  # noqa: PLC0415  # loads sqlglot

    if of.argument is None:
        return Kind(INTEGER)
    if of.function == "count_if":
        try:
            expressions.check_condition(of.argument, columns)
        except ValueError as error:
            raise ValueError(f"count_if({of.argument}): {error}") from None
        return Kind(INTEGER)
    kind = require_column(columns, of.argument).name
    if of.function == "count":
        return Kind(INTEGER)
    if kind not in _OF[of.function]:
        allowed = ", ".join(sorted(_OF[of.function]))
        raise ValueError(f"{of.function}({of.argument}): expected one of {allowed}, not a {kind}")
    return HISTOGRAM if of.function == "histogram" else Kind(kind)
