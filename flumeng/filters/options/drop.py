"""The options of the filter ``drop``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import FilterOptions, for_entries
from flumeng.config.kinds import Columns, require_column
from flumeng.filters.options.templates import is_attribute
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Drop(FilterOptions):
    """Takes columns away, and entries of `attrs`; all others stay. Events stay: see `where`."""

    implementation: ClassVar[str] = "flumeng.filters.drop:DropFilter"

    bare: ClassVar[str] = "columns"
    unconditional: ClassVar[str] = "all events have the same columns: select one that may be null"

    columns: tuple[str, ...] = option(
        doc="The columns, and `attrs.KEY` for entries of `attrs`.",
        minimum=1,
        example="[structured, procid, attrs.inode]",
    )

    def behind(self, columns: Columns) -> Columns:
        found = dict(columns)

        def take(name: str) -> None:
            if not is_attribute(name, found):
                require_column(found, name)
                del found[name]
                if not found:
                    raise ValueError("no column would be left")

        for_entries(self.columns, take)
        return found
