"""What executors run: a part of the journals as record batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from flumeng.connectors.journals.reader import JournalReader


def read(part: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Each range whole and in order, or an error. The part's value is what reads, and ranges, each
    with the address of who serves it; Spark makes a part of nothing, too. Raises as
    ``JournalClient.read``."""
    if part is None or part.value is None:
        return
    reader: JournalReader
    reader, pieces = part.value
    for piece, address in pieces:
        yield from reader.read(piece, address)
