"""Separates events that a filter could not process, which it reports in ``attrs.parse_error``.
Errors of earlier filters are set aside, and restored afterwards unless this filter reports one."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from flumeng.events import attributes
from flumeng.events.attributes import ATTRS, PARSE_ERROR, note
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import Wrapping
from flumeng.filters.marks import Marked, TakeStage, Unmarked

EARLIER, FAILED = "_flumeng_earlier_error", "_flumeng_failed"


class MarkFailures(Wrapping):
    """Runs ``inner`` and marks its failed events in FAILED. ``inner`` must keep unknown columns."""

    def apply(self, batch: LazyBatch) -> LazyBatch:
        earlier = batch.schema.append(pa.field(EARLIER, pa.string()))
        filtered = self._inner.apply(batch.arrow(take_earlier, earlier))
        fields = [field for field in filtered.schema if field.name != EARLIER]
        return filtered.arrow(mark_failures, pa.schema([*fields, pa.field(FAILED, pa.bool_())]))


def take_earlier(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Move errors of earlier filters from ``attrs`` to the column EARLIER, as an Arrow stage."""
    for batch in batches:
        earlier = attributes.value(batch[ATTRS], PARSE_ERROR)
        attrs = attributes.without(batch[ATTRS], [PARSE_ERROR])
        yield _with_attrs(batch, attrs).append_column(EARLIER, earlier)


def mark_failures(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add FAILED and restore errors from EARLIER, in Arrow; of two errors the later one stays."""
    for batch in batches:
        failed = attributes.value(batch[ATTRS], PARSE_ERROR).is_valid()
        attrs = note(batch[ATTRS], batch[EARLIER])
        yield _with_attrs(batch, attrs).drop_columns([EARLIER]).append_column(FAILED, failed)


def failed(marked: LazyBatch) -> LazyBatch:
    return _taken(marked, Marked(FAILED))


def processed(marked: LazyBatch) -> LazyBatch:
    return _taken(marked, Unmarked((FAILED,)))


def failures(batch: pa.RecordBatch) -> int:
    return int(batch[FAILED].true_count)


def reasons(failed: pa.RecordBatch) -> list[str]:
    texts: list[str] = attributes.value(failed[ATTRS], PARSE_ERROR).to_pylist()
    return texts


def _taken(marked: LazyBatch, which: Marked | Unmarked) -> LazyBatch:
    schema = marked.schema.remove(marked.schema.get_field_index(FAILED))
    return marked.arrow(TakeStage(which, tuple(schema.names)), schema)


def _with_attrs(batch: pa.RecordBatch, attrs: pa.MapArray) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(ATTRS), ATTRS, attrs)
