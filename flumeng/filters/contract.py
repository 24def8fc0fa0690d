"""The contract of filters: they change whole batches by Spark SQL or Arrow, never row by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from flumeng.events.lazy_batch import LazyBatch

if TYPE_CHECKING:
    from flumeng.filters.refreshed_table import RefreshedTable


class Filter(Protocol):
    """A filter of a flow, created from its options when the task starts."""

    @property
    def identified(self) -> bool:
        """Whether the filter refers to columns of ``events.identity`` by name."""
        return False

    @property
    def tables(self) -> Sequence[RefreshedTable]:
        """The lookup tables of the filter, refreshed at the start of each batch."""
        return ()

    def apply(self, batch: LazyBatch) -> LazyBatch:
        """Add stages to ``batch``; compute nothing. Called on the driver when the task starts,
        perhaps before lookup tables are loaded, and for each batch that cannot use the plan of an
        earlier one. Raises UserError for unfit columns."""


class EachBatch(ABC):
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(self.each, batches)

    @abstractmethod
    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch: ...


class Wrapping:
    def __init__(self, inner: Filter) -> None:
        self._inner = inner

    @property
    def identified(self) -> bool:
        return self._inner.identified

    @property
    def tables(self) -> Sequence[RefreshedTable]:
        return self._inner.tables
