"""The options of the filter ``sample``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import EVENT, Columns, require_keys
from flumeng.config.component import FilterOptions
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Sample(FilterOptions):
    """Keeps a part of the events, or all events of a part of the keys.

    A hash chooses the kept ones: the same events and keys in every batch, task and flow.
    """

    implementation: ClassVar[str] = "flumeng.filters.sample:SampleFilter"

    keeps_columns: ClassVar[bool] = True

    rate: float = option(
        doc="The share that is kept, from 0 to 1.", unit="ratio", between=(0, 1), example="0.1"
    )
    by: tuple[str, ...] = option(
        doc="The key columns: all events of a key are kept or dropped together. By default each "
        "event is sampled on its own.",
        example="[trace_id]",
        default=(),
    )

    def behind(self, columns: Columns) -> Columns:
        require_keys(columns, self.by)
        for name in () if self.by else ("journal", "seq"):
            if columns.get(name) != EVENT[name]:
                raise ValueError(f"sample needs the column {name}, or by: put select after sample")
        return columns
