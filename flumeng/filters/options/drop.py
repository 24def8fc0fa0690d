"""The options of the filter ``drop``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import EntriesError, FilterOptions
from flumeng.config.kinds import RECEIVED, Columns, require_column
from flumeng.filters.options.templates import ATTRIBUTE
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
        errors: dict[int, ValueError] = {}
        for number, name in enumerate(self.columns):
            try:
                if ATTRIBUTE.fullmatch(name) and name not in found:
                    if found.get("attrs") != RECEIVED["attrs"]:
                        raise ValueError("there are no attrs as they were received")
                    continue
                require_column(found, name)
                del found[name]
                if not found:
                    raise ValueError("no column would be left")
            except ValueError as error:
                errors[number] = error
        if errors:
            raise EntriesError(errors)
        return found
