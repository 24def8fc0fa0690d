"""The options of the filter ``sql``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import Columns
from flumeng.config.component import FilterOptions
from flumeng.config.tables import LookupTable
from flumeng.platform.options.option import Need, option

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


def check_table_name(text: str) -> None:
    if not _NAME.fullmatch(text) or text.lower() == "events":
        raise ValueError("expected a name of letters, digits and _, other than events")


@dataclass(frozen=True)
class Sql(FilterOptions):
    """A whole statement in Spark SQL, over the table `events` and further tables.

    It sees one batch: aggregates and windows are over the events of that batch.
    """

    implementation: ClassVar[str] = "flumeng.filters.sql:SqlFilter"

    bare: ClassVar[str] = "query"

    query: str = option(
        doc="The statement.",
        example='"SELECT e.*, a.team FROM events e LEFT JOIN apps a ON e.app = a.app"',
    )
    tables: Mapping[str, LookupTable] = option(
        doc="Further tables, by their names in the statement.",
        check=check_table_name,
        example='{apps: {csv: /etc/flumeng/apps.csv, schema: "app STRING, team STRING"}}',
        factory=dict,
    )

    @property
    def looks_up(self) -> bool:
        return bool(self.tables)

    def needs(self) -> Iterator[Need]:
        for table in self.tables.values():
            yield from table.needs()

    def problems(self) -> Iterator[tuple[str, str]]:
        if len({name.lower() for name in self.tables}) < len(self.tables):
            yield ("tables", "two names differ only in case, which Spark ignores")

    @property
    def unsteady(self) -> str | None:
        from flumeng.config import statements  # noqa: PLC0415  # loads sqlglot

        return statements.unsteady(self.query)

    @property
    def leaves_unread(self) -> bool:
        from flumeng.config import statements  # noqa: PLC0415  # loads sqlglot

        return statements.leaves_unread(self.query)

    def looked_up(self, before: Columns, after: Columns, _earlier: frozenset[str], /) -> set[str]:
        from flumeng.config import statements  # noqa: PLC0415  # loads sqlglot

        return after.keys() - statements.taken_over(self.query, before)

    def behind(self, columns: Columns) -> Columns:
        from flumeng.config import statements  # noqa: PLC0415  # loads sqlglot

        tables = {name: table.columns() for name, table in self.tables.items()}
        return statements.check(self.query, columns, tables)
