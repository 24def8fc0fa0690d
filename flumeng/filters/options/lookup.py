"""The options of the filter ``lookup``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.component import FilterOptions
from flumeng.config.kinds import IN_KEYS, Columns, require_new
from flumeng.config.tables import LookupTable
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.problems import nearest


@dataclass(frozen=True)
class Lookup(FilterOptions):
    """Adds columns from the row of a small table that has the same key.

    The table has one row for a key at most: one with several is not read, and the one before it
    stays. A key that is null is in no table.
    """

    implementation: ClassVar[str] = "flumeng.filters.lookup:LookupFilter"

    on: tuple[str, ...] = option(
        doc="The columns that events and the table have in common.", minimum=1, example="[app]"
    )
    table: LookupTable = option(
        doc="The table. Its other columns are added.",
        example='{csv: /etc/flumeng/apps.csv, schema: "app STRING, team STRING"}',
    )
    how: Literal["left", "inner"] = option(
        doc="Events without a row: their new columns are null, or they are dropped.",
        default="left",
    )

    looks_up: ClassVar[bool] = True

    def needs(self) -> Iterator[Need]:
        yield from self.table.needs()

    def behind(self, columns: Columns) -> Columns:
        table = self.table.columns()
        for name in self.on:
            for where, known in (("the events", columns), ("the table", table)):
                if name not in known:
                    raise ValueError(
                        f"there is no column {name} in {where}; {nearest(name, list(known))}"
                    )
            kinds = {columns[name].name, table[name].name}
            if len(kinds) > 1 or not kinds <= IN_KEYS:
                raise ValueError(
                    f"{name} is a {columns[name].name} of events and a {table[name].name} of the "
                    f"table: both have to be the same of {', '.join(sorted(IN_KEYS))}"
                )
        more = {name: kind for name, kind in table.items() if name not in self.on}
        if not more and self.how == "left":
            raise ValueError(
                "the schema of the table has nothing but the columns of on: add what for"
            )
        require_new(columns, more)
        return {**columns, **more}
