"""Filters made of what a flow says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from flumeng.config import registry
from flumeng.config.component import KEEP, Component, FilterOptions
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.conditional import ConditionalFilter
from flumeng.filters.contract import Filter
from flumeng.filters.on_error import DropFailures, MarkFailures

if TYPE_CHECKING:
    from flumeng.filters.refreshed_table import RefreshedTable


def made(part: Component[FilterOptions]) -> Filter:
    """Without what it cannot process, unless the flow keeps that. Raises UserError, ImportError."""
    step = marking(part)
    return step if part.on_error == KEEP else _InOrder((step, DropFailures()))


def marking(part: Component[FilterOptions]) -> Filter:
    """Behind the filter there is the column ``on_error.FAILED``, unless the flow keeps what cannot
    be processed. Raises as ``made``."""
    cls: Any = registry.get("filter", part.name).implementation_class()
    options = part.options
    if part.when is not None and hasattr(options, "only_when"):
        return cast("Filter", cls(options.only_when(part.when)))
    step: Filter = cls(options)
    if part.on_error != KEEP:
        step = MarkFailures(step)
    return step if part.when is None else _under(step, part.when, options.made_again())


def _under(step: Filter, condition: str, again: frozenset[str]) -> Filter:
    """Filters that do more than change each event where it is say themselves what they do under a
    condition."""
    if hasattr(step, "under"):
        return cast("Filter", step.under(condition))
    return ConditionalFilter(step, condition, again)


class _InOrder:
    def __init__(self, steps: tuple[Filter, ...]) -> None:
        self._steps = steps

    @property
    def identified(self) -> bool:
        return any(step.identified for step in self._steps)

    @property
    def tables(self) -> Sequence[RefreshedTable]:
        return [table for step in self._steps for table in step.tables]

    def apply(self, batch: LazyBatch) -> LazyBatch:
        for step in self._steps:
            batch = step.apply(batch)
        return batch
