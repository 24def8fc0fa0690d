"""What the same work costs where nothing is distributed: one plain process reads a journal's
segments from disk and writes its events into one Parquet file like those of the files sink.

    python -m benches.plain_copy JOURNAL_DIRECTORY FILE

prints the events and the CPU seconds, all and those of writing, without the start of Python.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from flumeng.connectors.api import chunks
from flumeng.events.schema import READ_SCHEMA
from flumeng.journal.log.journal import Journal

ROW_GROUP_BYTES = 64 << 20
REPEATED = ["host", "attrs.key_value.key", "attrs.key_value.value", "journal", "replayed"]
WITH_STATISTICS = [name for name in READ_SCHEMA.names if name != "body"]


def copy(directory: Path, target: Path) -> dict[str, float]:
    journal = Journal.open(directory)
    began, writing = time.process_time(), 0.0
    with pq.ParquetWriter(
        target,
        READ_SCHEMA,
        compression="zstd",
        use_dictionary=REPEATED,
        write_statistics=WITH_STATISTICS,
    ) as file:
        for group in chunks.tables(journal.read(journal.floor, journal.safe), ROW_GROUP_BYTES):
            read = time.process_time()
            file.write_table(group)
            writing += time.process_time() - read
    journal.close()
    cpu = time.process_time() - began
    return {"events": journal.safe - journal.floor, "cpu_seconds": cpu, "writing": writing}


if __name__ == "__main__":
    print(json.dumps(copy(Path(sys.argv[1]), Path(sys.argv[2]))))
