"""The options of the filter ``python``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import Columns, check_column, require_new
from flumeng.config.component import FilterOptions
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.texts import check_argument, check_function


@dataclass(frozen=True)
class Python(FilterOptions):
    """Replaces each Arrow batch of events by the result of a function.

    The module has to be installed on the collecting host, and allowed by the node's policy.
    """

    implementation: ClassVar[str] = "flumeng.filters.python:PythonFilter"

    function: str = option(
        doc="The module and its function, from a `pyarrow.RecordBatch` to another one.",
        check=check_function,
        example='"company.filters:score"',
    )
    adds: str | None = option(
        doc="The columns that it adds, as Spark DDL. It has to return its input columns too.",
        example='"score DOUBLE"',
        default=None,
    )
    options: Mapping[str, str] = option(
        doc="Further arguments, texts by name; a value may contain references to secrets.",
        check=check_argument,
        example='{model: small, token: "${secret:scores}"}',
        factory=dict,
    )

    reads_any: ClassVar[bool] = True

    @property
    def module(self) -> str:
        return self.function.partition(":")[0]

    def needs(self) -> Iterator[Need]:
        yield "python module", self.module

    def behind(self, columns: Columns) -> Columns:
        if self.adds is None:
            return columns
        from flumeng.config import expressions  # noqa: PLC0415  # loads sqlglot

        more = expressions.columns_of_ddl(self.adds)
        for name in more:
            check_column(name)
        require_new(columns, more)
        return {**columns, **more}
