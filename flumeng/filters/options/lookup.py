"""The options of the filter ``lookup``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.column_kinds import IN_KEYS, Columns, require_new
from flumeng.config.component import FilterOptions
from flumeng.config.tables import LookupTable
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.problems import nearest


@dataclass(frozen=True)
class Lookup(FilterOptions):
    """Adds columns from the row of a small table that has the same key.

    The table has at most one row per key: a table with duplicate keys is rejected, and the old one
    stays in use. A null key matches no row.
    """

    implementation: ClassVar[str] = "flumeng.filters.lookup:LookupFilter"

    on: tuple[str, ...] = option(
        doc="The key columns, in the events and in the table.", minimum=1, example="[app]"
    )
    table: LookupTable = option(
        doc="The table. Its other columns are added.",
        example='{csv: /etc/flumeng/apps.csv, schema: "app STRING, team STRING"}',
    )
    how: Literal["left", "inner"] = option(
        doc="For events without a row: `left` makes their new columns null, `inner` drops them.",
        default="left",
    )

    looks_up: ClassVar[bool] = True

    def needs(self) -> Iterator[Need]:
        yield from self.table.needs()

    def behind(self, columns: Columns) -> Columns:
        table = self.table.columns()
        for name in self.on:
            for where, available in (("the events", columns), ("the table", table)):
                if name not in available:
                    raise ValueError(
                        f"no column {name} in {where}; {nearest(name, list(available))}"
                    )
            kinds = {columns[name].name, table[name].name}
            if len(kinds) > 1 or not kinds <= IN_KEYS:
                raise ValueError(
                    f"the column {name} is a {columns[name].name} in the events and a "
                    f"{table[name].name} in the table: use one of {', '.join(sorted(IN_KEYS))}"
                )
        more = {name: kind for name, kind in table.items() if name not in self.on}
        if not more and self.how == "left":
            raise ValueError(
                "the table's schema has only the columns of on: add the columns to look up"
            )
        require_new(columns, more)
        return {**columns, **more}
