"""The options of the filter ``select``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import Columns, Kind, require_new
from flumeng.config.component import FilterOptions, for_entries, mentions
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Select(FilterOptions):
    """Chooses and computes columns in Spark SQL; all others are dropped."""

    implementation: ClassVar[str] = "flumeng.filters.select:SelectFilter"

    bare: ClassVar[str] = "expressions"

    expressions: tuple[str, ...] = option(
        doc="The columns to keep, each an expression.",
        minimum=1,
        example='["ts", "host", "upper(app) AS app"]',
    )

    def looked_up(self, before: Columns, _after: Columns, earlier: frozenset[str], /) -> set[str]:
        from flumeng.config import expressions  # noqa: PLC0415  # loads sqlglot

        return {
            name
            for text in self.expressions
            if text.strip() != "*" and mentions(text, earlier)
            for name in expressions.chosen(text, before)
        }

    def behind(self, columns: Columns) -> Columns:
        from flumeng.config import expressions  # noqa: PLC0415  # loads sqlglot

        result: dict[str, Kind] = {}

        def take(text: str) -> None:
            more = expressions.chosen(text, columns)
            require_new(result, more)
            result.update(more)

        for_entries(self.expressions, take)
        return result
