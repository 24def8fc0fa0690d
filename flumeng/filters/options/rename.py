"""The options of the filter ``rename``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import FilterOptions, problem_of
from flumeng.config.kinds import Columns, check_column, require_column, require_new
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Rename(FilterOptions):
    """Gives columns other names. They stay in their places, and so do all others."""

    implementation: ClassVar[str] = "flumeng.filters.rename:RenameFilter"

    bare: ClassVar[str] = "columns"
    unconditional: ClassVar[str] = "a column has one name for all events: set copies a column"

    columns: Mapping[str, str] = option(
        doc="The names that columns have, each with its new one.", example="{msg: message}"
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, new in self.columns.items():
            yield from problem_of(name, check_column, new)

    def looked_up(self, _before: Columns, _after: Columns, known: frozenset[str], /) -> set[str]:
        return {new for old, new in self.columns.items() if old in known}

    def behind(self, columns: Columns) -> Columns:
        for name in self.columns:
            require_column(columns, name)
        found: Columns = {}
        for name, kind in columns.items():
            new = self.columns.get(name, name)
            require_new(found, [new])
            found = {**found, new: kind}
        return found
