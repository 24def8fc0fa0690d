"""The options of ``aggregate``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import (
    EVENT,
    Columns,
    Kind,
    check_column,
    require_column,
    require_keys,
    require_new,
)
from flumeng.config.component import FilterOptions, problem_of
from flumeng.config.functions import DATE, FRACTION, INTEGER, TIMESTAMP
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
    **dict.fromkeys(("mean", "avg"), "use sum(x) and count(x), and divide their sums"),
    **dict.fromkeys(
        ("quantile", "percentile", "median", "percentile_approx"),
        "use histogram(x), and take quantiles of all rows of a window together",
    ),
}
"""Functions whose results for splits cannot be merged, with advice for use in their place."""
HISTOGRAM = Kind(
    "struct",
    (("values", Kind("array", (("", Kind(FRACTION)),))),
     ("counts", Kind("array", (("", Kind(INTEGER)),)))),
)  # fmt: skip
IDENTITY = ("journal", "seq", "replayed")


@dataclass(frozen=True)
class Value:
    """A ``function`` of a column or condition; ``argument`` is None for ``count`` of all rows."""

    function: str
    argument: str | None


def value(text: str) -> Value:
    match = _CALL.fullmatch(text.strip())
    function = match["function"] if match else ""
    argument = (match["argument"] or "").strip() if match else ""
    if function in INSTEAD:
        raise ValueError(f"the {function} of parts cannot be merged: {INSTEAD[function]}")
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
    """Computes counts, sums, extremes and histograms for each key and window of event time, in
    each split of a batch.

    A key and window may have several rows, which the reader has to merge: a late event adds a row
    to its window. A row has the identity of its first event.
    """

    implementation: ClassVar[str] = "flumeng.filters.aggregate:AggregateFilter"

    unconditional: ClassVar[str] = "put a where before it, or use a branch"
    regroups: ClassVar[bool] = True

    values: Mapping[str, str] = option(
        doc="The columns to compute: `count`, `count(x)` of non-null values, "
        "`count_if(condition)`, `sum(x)`, `min(x)`, `max(x)`, and `histogram(x)` for quantiles.",
        check=check_column,
        example='{n: count, errors: "count_if(status >= 500)", took: "histogram(took_ms)"}',
    )
    by: tuple[str, ...] = option(
        doc="The key columns; by default all events have one key.",
        example="[host, app]",
        default=(),
    )
    window_seconds: float = option(
        doc="The length of a window of `ts`; `ts` becomes the start of the window. Windows are "
        "aligned to 1970.",
        between=(0.001, 366 * 86_400),
        default=60.0,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.values:
            yield "values", "expected at least one column"
        for name, text in self.values.items():
            yield from problem_of(f"values.{name}", value, text)

    def behind(self, columns: Columns) -> Columns:
        if columns.get("ts") != Kind(TIMESTAMP):
            raise ValueError("aggregate needs the column ts: put select after it, or keep ts")
        if "ts" in self.by:
            raise ValueError("ts is already a key, as the start of the window: remove ts from by")
        require_keys(columns, self.by)
        result = {"ts": columns["ts"], **{name: columns[name] for name in self.by}}
        for name in IDENTITY:
            if name in self.by or columns.get(name) != EVENT[name]:
                continue
            result[name] = columns[name]
        for name, text in self.values.items():
            require_new(result, [name])
            result[name] = _kind(value(text), columns)
        return result


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
        raise ValueError(f"{of.function}({of.argument}): expected a {allowed}, not a {kind}")
    return HISTOGRAM if of.function == "histogram" else Kind(kind)
