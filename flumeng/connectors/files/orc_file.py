"""ORC, with all columns as they are; times become instants with nanoseconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import orc

CODECS = {"none": "uncompressed", "gzip": "zlib"}


class OrcFile:
    def __init__(self, sink: pa.NativeFile, compression: str) -> None:
        self._sink = sink
        self._writer = orc.ORCWriter(sink, compression=CODECS.get(compression, compression))

    def write(self, rows: pa.Table) -> None:
        """As a copy: of a slice, pyarrow writes structs of other rows."""
        self._writer.write(rows.take(pa.array(np.arange(rows.num_rows))))

    def close(self) -> None:
        self._writer.close()
        self._sink.close()
