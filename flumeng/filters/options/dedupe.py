"""The options of the filter ``dedupe``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import Columns, Kind, require_keys
from flumeng.config.component import FilterOptions
from flumeng.config.functions import TIMESTAMP
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Dedupe(FilterOptions):
    """Keeps the first of events that have the same values in some columns.

    It sees one split of a batch: duplicates in other splits stay. A null equals no other value.
    """

    implementation: ClassVar[str] = "flumeng.filters.key_counts:FirstOfKeyFilter"

    bare: ClassVar[str] = "by"
    keeps_columns: ClassVar[bool] = True
    unconditional: ClassVar[str] = (
        "put a set before it that makes a column of by only for the events concerned: events "
        "with a null there are kept"
    )

    by: tuple[str, ...] = option(
        doc="The columns that are equal in duplicates.", minimum=1, example="[host, request_id]"
    )
    within_seconds: float | None = option(
        doc="Only events in the same window of `ts` of this length are duplicates; windows are "
        "aligned to 1970.",
        between=(0.001, 366 * 86_400),
        example="10 min",
        default=None,
    )

    def behind(self, columns: Columns) -> Columns:
        require_keys(columns, self.by)
        if self.within_seconds is not None and columns.get("ts") != Kind(TIMESTAMP):
            raise ValueError("within_seconds needs the column ts: keep ts in select")
        return columns
