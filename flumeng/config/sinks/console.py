"""The options of the sinks ``console`` and ``noop``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Console:
    """Prints the first events of each batch in the node's log, to look at while trying a flow."""


@dataclass(frozen=True)
class Noop:
    """Computes everything and writes nothing, to measure."""
