"""The options of the filter ``explode``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import (
    EVENT,
    RECEIVED,
    Columns,
    Kind,
    check_column,
    require_column,
    require_new,
)
from flumeng.config.component import FilterOptions
from flumeng.config.functions import BINARY, TEXT
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Explode(FilterOptions):
    """Makes a row of each entry of an array, with all other columns unchanged.

    The array is a column of that type, or a text or `body` that is a JSON array; for another text
    the attribute `parse_error` has the reason. All rows of an array are of the same event. An event
    without entries stays, with null.
    """

    implementation: ClassVar[str] = "flumeng.filters.explode:ExplodeFilter"

    bare: ClassVar[str] = "column"
    unconditional: ClassVar[str] = (
        "events with a null array stay as they are: use select to make it null for the others"
    )
    multiplies: ClassVar[bool] = True
    notes_errors: ClassVar[bool] = True

    column: str = option(doc="The column with the array; it is removed.", example="items")
    to: str | None = option(
        doc="The column for the entries; by default the array's own name.",
        check=check_column,
        example="item",
        default=None,
    )

    @property
    def target(self) -> str:
        return self.to or self.column

    def behind(self, columns: Columns) -> Columns:
        kind = require_column(columns, self.column)
        entry = self._entry(kind, columns)
        if self.column in EVENT and self.column not in RECEIVED:
            raise ValueError(
                f"{self.column} is the name of a column that flumeng sets: it cannot be exploded"
            )
        others = {name: kind for name, kind in columns.items() if name != self.column}
        require_new(others, [self.target])
        return {**others, self.target: entry}

    def _entry(self, kind: Kind, columns: Columns) -> Kind:
        if kind.name == "array" and kind.inner:
            return kind.inner[0][1]
        if kind.name not in (TEXT, BINARY):
            raise ValueError(f"the column {self.column} is a {kind.name}, not an array or JSON")
        if columns.get("attrs") != RECEIVED["attrs"]:
            raise ValueError("JSON needs the column attrs: put select after explode, or keep attrs")
        return Kind(kind.name if self.target == self.column else TEXT, growth=kind.growth)
