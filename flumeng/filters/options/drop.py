"""The options of the filter ``drop``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import Columns, require_column
from flumeng.config.component import FilterOptions, for_entries
from flumeng.filters.options.templates import is_attribute
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Drop(FilterOptions):
    """Removes columns, and entries of `attrs`. It keeps all events: see `where`."""

    implementation: ClassVar[str] = "flumeng.filters.drop:DropFilter"

    bare: ClassVar[str] = "columns"
    unconditional: ClassVar[str] = "all events have the same columns: select can make one null"

    columns: tuple[str, ...] = option(
        doc="The columns, and `attrs.KEY` for entries of `attrs`.",
        minimum=1,
        example="[structured, procid, attrs.inode]",
    )

    def behind(self, columns: Columns) -> Columns:
        remaining = dict(columns)

        def take(name: str) -> None:
            if not is_attribute(name, remaining):
                require_column(remaining, name)
                del remaining[name]
                if not remaining:
                    raise ValueError("drop would remove all columns: keep at least one")

        for_entries(self.columns, take)
        return remaining
