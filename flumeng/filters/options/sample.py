"""The options of the filter ``sample``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import FilterOptions
from flumeng.config.kinds import EVENT, Columns, require_keys
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Sample(FilterOptions):
    """Keeps a part of the events, or all events of a part of the keys.

    A hash chooses the kept ones: the same events and keys in every batch, task and flow.
    """

    implementation: ClassVar[str] = "flumeng.filters.sample:SampleFilter"

    keeps_columns: ClassVar[bool] = True

    rate: float = option(
        doc="How much is kept, from 0 to 1.", unit="ratio", between=(0, 1), example="0.1"
    )
    by: tuple[str, ...] = option(
        doc="The columns of a key: all of its events are kept or dropped together. Without it each "
        "event counts for itself.",
        example="[trace_id]",
        default=(),
    )

    def behind(self, columns: Columns) -> Columns:
        require_keys(columns, self.by)
        for name in () if self.by else ("journal", "seq"):
            if columns.get(name) != EVENT[name]:
                raise ValueError(f"needs the column {name} or by: put select behind sample")
        return columns
