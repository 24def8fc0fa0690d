"""The options of the filter ``time``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import FilterOptions
from flumeng.config.functions import FRACTION, INTEGER, TEXT, TIMESTAMP
from flumeng.config.kinds import RECEIVED, Columns, Kind, check_column, require_column, require_new
from flumeng.filters.options import time_formats
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_timezone


@dataclass(frozen=True)
class Time(FilterOptions):
    """Reads a time out of a column of texts or numbers, into `ts` or another column.

    An event whose time is of no format keeps its earlier value, with the reason in the attribute
    `parse_error`; one whose column is null keeps it too.
    """

    implementation: ClassVar[str] = "flumeng.filters.time:TimeFilter"

    notes_errors: ClassVar[bool] = True

    column: str = option(doc="The column to read.", example="when")
    formats: tuple[str, ...] = option(
        doc="What the times may look like; the first one that fits counts. Patterns as of "
        "`strptime`, or `iso8601`, `rfc3339`, `rfc2822`, `common_log`, `unix`, `unix_ms`, "
        "`unix_us`, `unix_ns`.",
        check=time_formats.check,
        minimum=1,
        example='["%d.%m.%Y %H:%M:%S", iso8601]',
        default=("iso8601",),
    )
    timezone: str = option(
        doc="The time zone, by its IANA name, of times that name none.",
        check=check_timezone,
        example="Europe/Berlin",
        default="UTC",
    )
    to: str = option(
        doc="The column to set: one that there is, or a new one.", check=check_column, default="ts"
    )
    ts_within_seconds: float = option(
        doc="Of `to: ts`: a time that lies farther from the `ts` that the event has is not "
        "believed: that stays, and the attribute `ts_refused` has what was said.",
        between=(0, 1000 * 366 * 86_400),
        default=7 * 86_400.0,
    )

    def looked_up(self, before: Columns, after: Columns, known: frozenset[str], /) -> set[str]:
        return {*super().looked_up(before, after, known), self.to}

    def behind(self, columns: Columns) -> Columns:
        for name in ("ts", "attrs"):
            if columns.get(name) != RECEIVED[name]:
                raise ValueError(f"needs the column {name}: put select behind time, or keep it")
        kind = require_column(columns, self.column).name
        if kind not in (TEXT, INTEGER, FRACTION):
            raise ValueError(f"{self.column} is a {kind}: expected a text or a number")
        others = [name for name in self.formats if name not in time_formats.UNITS]
        if kind != TEXT and others:
            raise ValueError(
                f"{self.column} is a number, which {others[0]} does not read: expected "
                f"{', '.join(time_formats.UNITS)}"
            )
        if self.to not in columns:
            require_new(columns, [self.to])
        elif columns[self.to].name != TIMESTAMP:
            raise ValueError(f"{self.to} is a {columns[self.to].name}, and no timestamp")
        return {**columns, self.to: Kind(TIMESTAMP)}
