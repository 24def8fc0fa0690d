"""The public contract of connectors and filters: plug-ins import only this package of flumeng.
Option classes need no pyarrow; ``Source``, ``Sink``, ``RangedInput`` and ``Filter`` do. Names are
loaded when used, so that control processes load no pyarrow. See docs/how-to/write-a-plug-in.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flumeng.config.column_kinds import Columns, Kind, check_column, require_column, require_new
    from flumeng.config.component import (
        ExactlyOnce,
        FilterOptions,
        Guarantee,
        InputOptions,
        SinkOptions,
        SourceOptions,
    )
    from flumeng.connectors.api.ranged_input import Ends, RangedInput
    from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
    from flumeng.connectors.api.sink import (
        Attempt,
        BatchId,
        Commit,
        Probed,
        Row,
        Sink,
        TaskRevision,
        Written,
    )
    from flumeng.connectors.api.source import Source, SourceContext
    from flumeng.events.columns import changed, replaced
    from flumeng.events.identity import JOURNAL, SEQ, SPLIT, strip, without
    from flumeng.events.lazy_batch import LazyBatch
    from flumeng.filters.contract import Filter
    from flumeng.platform.errors import ConflictError, CorruptError, UnavailableError, UserError
    from flumeng.platform.options.option import Need, option

__all__ = [
    "JOURNAL",
    "SEQ",
    "SPLIT",
    "Attempt",
    "BatchId",
    "Columns",
    "Commit",
    "ConflictError",
    "CorruptError",
    "Ends",
    "ExactlyOnce",
    "Filter",
    "FilterOptions",
    "Guarantee",
    "InputOptions",
    "Kind",
    "LazyBatch",
    "LineRules",
    "Need",
    "Origin",
    "Probed",
    "RangedInput",
    "ReceivedBlock",
    "Row",
    "Sink",
    "SinkOptions",
    "Source",
    "SourceContext",
    "SourceOptions",
    "TaskRevision",
    "UnavailableError",
    "UserError",
    "Written",
    "changed",
    "check_column",
    "option",
    "replaced",
    "require_column",
    "require_new",
    "strip",
    "without",
]
_MODULES = (
    "flumeng.platform.options.option",
    "flumeng.platform.errors",
    "flumeng.config.column_kinds",
    "flumeng.config.component",
    "flumeng.connectors.api.received_block",
    "flumeng.connectors.api.source",
    "flumeng.connectors.api.ranged_input",
    "flumeng.connectors.api.sink",
    "flumeng.events.columns",
    "flumeng.events.identity",
    "flumeng.events.lazy_batch",
    "flumeng.filters.contract",
)
"""Modules in which names are looked up, in this order: those without pyarrow come first."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"{__name__} has no {name}")
