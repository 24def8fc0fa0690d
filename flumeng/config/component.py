"""A source, filter or sink of a flow: its name and the options class that the registry gives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from flumeng.config.registry import Kind
from flumeng.platform.options.option import option

OnError = Literal["keep", "drop", "dead-letter"]
KEEP: OnError = "keep"
DROP: OnError = "drop"
DEAD_LETTER: OnError = "dead-letter"


@dataclass(frozen=True)
class Keep:
    """How long dead letters in files are kept, and how many bytes of them; older files go."""

    days: int | None = option(
        doc="Files that are older go.", minimum=1, maximum=36_500, example="30", default=None
    )
    bytes: int | None = option(
        doc="Of more the oldest files go.",
        unit="bytes",
        minimum=2**20,
        maximum=2**60,
        example="10 GiB",
        default=None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.days is None and self.bytes is None:
            yield "", "expected days, bytes or both"


@dataclass(frozen=True)
class Component:
    """``options`` is an instance of the frozen dataclass registered for ``kind`` and ``name``.
    ``when``: of a filter, in Spark SQL, which events it is for; all others pass it by.
    ``on_error``: what becomes of events that a filter cannot process. ``isolated``: of a sink, that
    it is written at its own pace. ``keep``: of the sink for dead letters, how many of these are
    kept; all, when it is None."""

    kind: Kind
    name: str
    options: Any
    when: str | None = None
    on_error: OnError = KEEP
    isolated: bool = False
    keep: Keep | None = None
