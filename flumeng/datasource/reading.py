"""What executors run: a part of the journals as record batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from flumeng.inputs.journals.reader import JournalReader


def read(part: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Each range whole and in order, or an error. The part's value is ranges, each with the address
    of who serves it; Spark makes a part of nothing, too. Raises as ``JournalClient.read``."""
    reader = JournalReader()
    for piece, address in (part and part.value) or ():
        yield from reader.read(piece, address)
