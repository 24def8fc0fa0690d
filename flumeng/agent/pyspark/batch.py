"""``spark.read``: what the journals keep when the DataFrame is first used, which plans it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from flumeng.agent.pyspark.cursor import Cursor, connect, require_readable
from flumeng.agent.pyspark.options import Options
from flumeng.agent.pyspark.planning import Planning, read


class BatchReader(DataSourceReader):
    """With a cursor it begins at the cursor's acks, which only ``commit`` moves."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with (
            closing(connect(options.zookeeper)) as store,
            closing(Planning(options, store)) as planning,
        ):
            require_readable(store, options.flow)
            start: dict[str, int] = {}
            if options.cursor:
                cursor = Cursor.take(
                    store,
                    options.flow,
                    options.cursor,
                    keep_seconds=options.keep_seconds,
                    begin=planning.begin,
                )
                start = cursor.offsets()
            look = planning.look()
            if options.fail_on_data_loss:
                look.require_all('option("failOnDataLoss", "false") reads the others')
            return planning.partitions(start, look.reached)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition)
