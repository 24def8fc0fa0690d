"""The functions over many rows that a statement may call, beside those of one row.

Reasons are those of ``flumeng.config.functions``, and each holds a bounded state for each group. So
there is no ``collect_list``, ``listagg`` or ``percentile``, which hold all values of a group. What
those of BY_ORDER give depends on the order of rows that are alike in what they are ordered by;
``first`` and ``any_value``, which have no such order, are not there. Sums and means of numbers that
are no integers may differ in their last digits.
"""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.config.functions import Function, read

FRAME_ROWS = 1000

_AGGREGATES = """
count: X* -> integer
count_if: o -> integer
sum: N -> fraction
avg mean: N -> fraction
min max: E -> =
max_by min_by: E G -> =
bool_and bool_or: o -> boolean
stddev stddev_pop stddev_samp variance var_pop var_samp: N -> fraction
approx_count_distinct: G -> integer
percentile_approx approx_percentile: N n -> fraction
"""
_WINDOWS = """
row_number rank dense_rank: -> integer
percent_rank cume_dist: -> fraction
ntile: C -> integer
lag lead: E C? E? -> =
first_value last_value: E -> =
"""
AGGREGATES: Mapping[str, Function] = read(_AGGREGATES)
WINDOWS: Mapping[str, Function] = read(_WINDOWS)
"""Only with OVER, as all others may be."""

BY_ORDER = (
    "row_number", "ntile", "lag", "lead", "first_value", "last_value", "max_by", "min_by",
    "percentile_approx", "approx_percentile", "rows",
)  # fmt: skip
"""``rows`` are windows of so many ROWS."""


def frame_allowed(kind: str, start: str, end: str) -> bool:
    """Whether each row of a window takes a bounded time. FEW are at most FRAME_ROWS rows."""
    if start == "UNBOUNDED PRECEDING":
        return end in ("", "CURRENT ROW", "UNBOUNDED FOLLOWING")
    near = ("CURRENT ROW", "FEW")
    return kind == "ROWS" and start in near and end in ("", *near)
