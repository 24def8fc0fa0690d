"""The options of the filter ``limit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import FilterOptions
from flumeng.config.functions import TIMESTAMP
from flumeng.config.kinds import Columns, Kind, require_keys
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Limit(FilterOptions):
    """Lets so many events of a key and a window of event time through, and drops the others.

    It counts in each split of a batch by itself: it holds back floods, and is no quota.
    """

    implementation: ClassVar[str] = "flumeng.filters.key_counts:FirstOfKeyFilter"

    keeps_columns: ClassVar[bool] = True
    unconditional: ClassVar[str] = (
        "put a set before it that makes a column for the events it is for: where a column of by "
        "is null, nothing is dropped"
    )

    events: int = option(doc="How many, the first that come.", between=(1, 10**9), example="100")
    by: tuple[str, ...] = option(doc="The columns of the key.", minimum=1, example="[host, app]")
    per_seconds: float = option(
        doc="The length of a window of `ts`; windows begin at 1970.",
        between=(0.001, 366 * 86_400),
        default=1.0,
    )

    def behind(self, columns: Columns) -> Columns:
        require_keys(columns, self.by)
        if columns.get("ts") != Kind(TIMESTAMP):
            raise ValueError("needs the column ts: put select behind limit, or keep it")
        return columns
