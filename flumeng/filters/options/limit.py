"""The options of the filter ``limit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import Columns, Kind, require_keys
from flumeng.config.component import FilterOptions
from flumeng.config.functions import TIMESTAMP
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Limit(FilterOptions):
    """Passes a number of events per key and window of event time, and drops the others.

    It counts in each split of a batch separately: it limits floods, but is not a quota. Events
    with a null in the key or `ts` all pass.
    """

    implementation: ClassVar[str] = "flumeng.filters.key_counts:FirstOfKeyFilter"

    keeps_columns: ClassVar[bool] = True
    unconditional: ClassVar[str] = (
        "put a set before it that makes a column of by only for the events concerned: events "
        "with a null there are kept"
    )

    events: int = option(doc="The number of events that pass.", between=(1, 10**9), example="100")
    by: tuple[str, ...] = option(doc="The key columns.", minimum=1, example="[host, app]")
    per_seconds: float = option(
        doc="The length of a window of `ts`; windows are aligned to 1970.",
        between=(0.001, 366 * 86_400),
        default=1.0,
    )

    def behind(self, columns: Columns) -> Columns:
        require_keys(columns, self.by)
        if columns.get("ts") != Kind(TIMESTAMP):
            raise ValueError("limit needs the column ts: put select after limit, or keep ts")
        return columns
