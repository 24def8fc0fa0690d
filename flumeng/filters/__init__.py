"""Functions from batch to batch: Spark SQL, or Arrow batch by batch; never row by row."""

from __future__ import annotations

from typing import Protocol

from flumeng.filters.lazy_batch import LazyBatch


class Filter(Protocol):
    """One filter of a flow, made from its options when the flow's task starts."""

    def apply(self, batch: LazyBatch) -> LazyBatch:
        """Called once a batch, on the driver; it plans and computes nothing.

        Raises UserError when the options do not fit the batch's columns.
        """
