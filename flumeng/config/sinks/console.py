"""The options of the sinks ``console`` and ``noop``."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.config.declared import SinkOptions


@dataclass(frozen=True)
class Console(SinkOptions):
    """Prints the first events of each batch in the node's log, to look at while trying a flow."""


@dataclass(frozen=True)
class Noop(SinkOptions):
    """Computes everything and writes nothing, to measure."""
