"""Functions from batch to batch: Spark SQL, or Arrow batch by batch; never row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from flumeng.events.lazy_batch import LazyBatch

if TYPE_CHECKING:
    from flumeng.filters.refreshed_table import RefreshedTable


class Filter(Protocol):
    """One filter of a flow, made from a session and its options when the flow's task starts."""

    @property
    def identified(self) -> bool:
        """Whether it names columns of ``filters.identity``."""

    @property
    def tables(self) -> Sequence[RefreshedTable]:
        """What it looks things up in; they are refreshed when a batch begins."""

    def apply(self, batch: LazyBatch) -> LazyBatch:
        """Called once a batch, on the driver; it plans and computes nothing.

        Raises UserError when the options do not fit the batch's columns. What it looks things up
        in may not be there yet when the task starts, and it is only tried.
        """


class Wrapping:
    """A filter around ``inner``, with what that names and looks things up in."""

    def __init__(self, inner: Filter) -> None:
        self._inner = inner

    @property
    def identified(self) -> bool:
        return self._inner.identified

    @property
    def tables(self) -> Sequence[RefreshedTable]:
        return self._inner.tables
