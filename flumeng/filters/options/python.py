"""The options of the filter ``python``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import FilterOptions
from flumeng.config.kinds import Columns, check_column, require_new
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.texts import check_argument, check_function


@dataclass(frozen=True)
class Python(FilterOptions):
    """Calls a function with each Arrow batch of events; the batch that it returns goes on.

    The module is one that is installed where the node collects, and that the node's policy names.
    """

    implementation: ClassVar[str] = "flumeng.filters.python:PythonFilter"

    function: str = option(
        doc="The module and the function in it: a `pyarrow.RecordBatch` to another one.",
        check=check_function,
        example='"company.filters:score"',
    )
    adds: str | None = option(
        doc="The columns that it adds, as Spark DDL. It hands on all columns that it is given.",
        example='"score DOUBLE"',
        default=None,
    )
    options: Mapping[str, str] = option(
        doc="Further arguments by name, which are texts; a value may have references to secrets "
        "in it.",
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
