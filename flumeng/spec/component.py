"""A source, filter or sink of a flow: its name and the options class that the registry gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from flumeng.spec.registry import Kind

OnError = Literal["keep", "drop", "dead-letter"]
KEEP: OnError = "keep"
DROP: OnError = "drop"
DEAD_LETTER: OnError = "dead-letter"


@dataclass(frozen=True)
class Component:
    """``options`` is an instance of the frozen dataclass registered for ``kind`` and ``name``.
    ``when``: of a filter, in Spark SQL, which events it is for; all others pass it by.
    ``on_error``: what becomes of events that a filter cannot process. ``isolated``: of a sink, that
    it is written at its own pace."""

    kind: Kind
    name: str
    options: Any
    when: str | None = None
    on_error: OnError = KEEP
    isolated: bool = False
