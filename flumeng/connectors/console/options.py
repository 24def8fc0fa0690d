"""The options of the sinks ``console`` and ``noop``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import SinkOptions


@dataclass(frozen=True)
class Console(SinkOptions):
    """Prints the first events of each batch in the node's log, to look at while trying a flow."""

    implementation: ClassVar[str] = "flumeng.connectors.console.sink:ConsoleSink"


@dataclass(frozen=True)
class Noop(SinkOptions):
    """Computes everything and writes nothing, to measure."""

    implementation: ClassVar[str] = "flumeng.connectors.console.sink:NoopSink"
