"""Rejects event times too far from the receipt of an event, since senders are not trusted. Such an
event keeps the time of receipt as ``ts``; the rejected one is in ``attrs.ts_refused``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import note
from flumeng.events.lazy_batch import Stage

REFUSED = "ts_refused"
SECOND = 1_000_000


@dataclass(frozen=True)
class Bounded:
    """Runs ``stage`` and bounds its changes of ``ts``. ``stage`` must keep batches and rows."""

    stage: Stage
    within_seconds: float
    rows_at_a_time: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, self.rows_at_a_time):
                received = batch.slice(start, self.rows_at_a_time)
                (changed,) = self.stage(iter([received]))
                yield self._bound(changed, received["ts"])

    def _bound(self, batch: pa.RecordBatch, received: pa.Array) -> pa.RecordBatch:
        times, receipts = batch["ts"].view(pa.int64()), received.view(pa.int64())
        if times.null_count or receipts.null_count:
            off = pc.subtract(times, receipts).fill_null(0).to_numpy(False)
        else:
            off = times.to_numpy() - receipts.to_numpy()
        far = np.abs(off) > self.within_seconds * SECOND
        if not far.any():
            return batch
        mask = pa.array(far)
        rejected = pc.if_else(mask, batch["ts"], pa.scalar(None, batch["ts"].type))
        changed = {
            "ts": pc.if_else(mask, received, batch["ts"]),
            "attrs": note(batch["attrs"], pc.strftime(rejected, "%Y-%m-%dT%H:%M:%SZ"), REFUSED),
        }
        columns = [changed.get(name, batch[name]) for name in batch.schema.names]
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def refused(events: pa.Table) -> int:
    """Count the events with a rejected time; 0 when there is no column ``attrs``."""
    if "attrs" not in events.schema.names or not pa.types.is_map(events.schema.field("attrs").type):
        return 0
    return sum(_count(attrs) for attrs in events["attrs"].chunks)


def _count(attrs: pa.MapArray) -> int:
    first, last = attrs.offsets[0].as_py(), attrs.offsets[-1].as_py()
    return int(pc.sum(pc.equal(attrs.keys.slice(first, last - first), REFUSED)).as_py() or 0)
