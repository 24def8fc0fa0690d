"""The options of the filter ``rename``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import Columns, check_column, require_column, require_new
from flumeng.config.component import FilterOptions, problem_of
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Rename(FilterOptions):
    """Renames columns. The order of the columns stays the same."""

    implementation: ClassVar[str] = "flumeng.filters.rename:RenameFilter"

    bare: ClassVar[str] = "columns"
    unconditional: ClassVar[str] = "a column has one name for all events: use set to copy it"

    columns: Mapping[str, str] = option(
        doc="The new name of each column, by its old one.", example="{msg: message}"
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, new in self.columns.items():
            yield from problem_of(name, check_column, new)

    def looked_up(self, _before: Columns, _after: Columns, earlier: frozenset[str], /) -> set[str]:
        return {new for old, new in self.columns.items() if old in earlier}

    def behind(self, columns: Columns) -> Columns:
        for name in self.columns:
            require_column(columns, name)
        renamed: Columns = {}
        for name, kind in columns.items():
            new = self.columns.get(name, name)
            require_new(renamed, [new])
            renamed = {**renamed, new: kind}
        return renamed
