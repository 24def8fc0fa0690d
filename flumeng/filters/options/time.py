"""The options of the filter ``time``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import (
    RECEIVED,
    Columns,
    Kind,
    check_column,
    require_column,
    require_new,
)
from flumeng.config.component import FilterOptions
from flumeng.config.functions import FRACTION, INTEGER, TEXT, TIMESTAMP
from flumeng.filters.options import time_formats
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_timezone


@dataclass(frozen=True)
class Time(FilterOptions):
    """Parses a time from a column of texts or numbers, into `ts` or another column.

    An event whose time matches no format keeps its earlier value, with the reason in the attribute
    `parse_error`. An event with a null column keeps it too.
    """

    implementation: ClassVar[str] = "flumeng.filters.time:TimeFilter"

    notes_errors: ClassVar[bool] = True

    column: str = option(doc="The column to read.", example="when")
    formats: tuple[str, ...] = option(
        doc="The formats of the times; the first one that matches is used. Patterns as of "
        "`strptime`, or `iso8601`, `rfc3339`, `rfc2822`, `common_log`, `unix`, `unix_ms`, "
        "`unix_us`, `unix_ns`.",
        check=time_formats.check,
        minimum=1,
        example='["%d.%m.%Y %H:%M:%S", iso8601]',
        default=("iso8601",),
    )
    timezone: str = option(
        doc="The time zone, an IANA name, of times without one.",
        check=check_timezone,
        example="Europe/Berlin",
        default="UTC",
    )
    to: str = option(doc="The column to set, existing or new.", check=check_column, default="ts")
    ts_within_seconds: float = option(
        doc="With `to: ts`: a time farther than this from the event's `ts` is rejected: `ts` "
        "stays, and the attribute `ts_refused` has the rejected time.",
        between=(0, 1000 * 366 * 86_400),
        default=7 * 86_400.0,
    )

    def looked_up(self, before: Columns, after: Columns, earlier: frozenset[str], /) -> set[str]:
        return {*super().looked_up(before, after, earlier), self.to}

    def behind(self, columns: Columns) -> Columns:
        for name in ("ts", "attrs"):
            if columns.get(name) != RECEIVED[name]:
                raise ValueError(f"time needs the column {name}: put select after time, or keep it")
        kind = require_column(columns, self.column).name
        if kind not in (TEXT, INTEGER, FRACTION):
            raise ValueError(f"the column {self.column} is a {kind}: expected a text or a number")
        others = [name for name in self.formats if name not in time_formats.UNITS]
        if kind != TEXT and others:
            raise ValueError(
                f"the column {self.column} is a number, which the format {others[0]} does not "
                f"read: expected {', '.join(time_formats.UNITS)}"
            )
        if self.to not in columns:
            require_new(columns, [self.to])
        elif columns[self.to].name != TIMESTAMP:
            kind = columns[self.to].name
            raise ValueError(f"the column {self.to} is a {kind}: expected a timestamp")
        return {**columns, self.to: Kind(TIMESTAMP)}
