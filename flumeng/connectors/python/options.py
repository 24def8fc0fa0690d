"""The options of the sink ``python``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import ExactlyOnce, SinkOptions
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.texts import check_argument, check_function


@dataclass(frozen=True)
class Python(SinkOptions):
    """Calls a function with each batch, `(DataFrame, batch_id)`, as `foreachBatch` of Spark does.

    After a crash the same number comes with the same events. The module has to be installed on the
    collecting host, and allowed by the node's policy.
    """

    implementation: ClassVar[str] = "flumeng.connectors.python.sink:PythonSink"

    function: str = option(
        doc="The module and the function in it.",
        check=check_function,
        example='"company.sinks:to_warehouse"',
    )
    options: Mapping[str, str] = option(
        doc="Further arguments, texts by name; a value may contain references to secrets.",
        check=check_argument,
        example='{table: events, password: "${secret:warehouse}"}',
        factory=dict,
    )
    idempotent: bool = option(
        doc="The function ignores a batch number that it has already processed. Exactly-once "
        "delivery needs that.",
        default=False,
    )

    numbered: ClassVar[bool] = True
    in_driver: ClassVar[bool] = True

    @property
    def exactly_once(self) -> ExactlyOnce | None:
        return "by batch" if self.idempotent else None

    @property
    def module(self) -> str:
        return self.function.partition(":")[0]

    def needs(self) -> Iterator[Need]:
        yield "python module", self.module
