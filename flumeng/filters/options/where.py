"""The options of the filter ``where``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import Columns
from flumeng.config.component import FilterOptions
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Where(FilterOptions):
    """Keeps the events for which a condition in Spark SQL is true."""

    implementation: ClassVar[str] = "flumeng.filters.where:WhereFilter"

    bare: ClassVar[str] = "expression"
    keeps_columns: ClassVar[bool] = True

    expression: str = option(doc="The condition.", example='"severity <= 4"')

    def behind(self, columns: Columns) -> Columns:
        from flumeng.config import expressions  # noqa: PLC0415  # loads sqlglot

        expressions.check_condition(self.expression, columns)
        return columns
