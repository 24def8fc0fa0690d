"""What a bulk request says of each event: a line of what is to be done, and the document."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.elasticsearch import keys
from flumeng.connectors.elasticsearch.index_names import IndexNames
from flumeng.connectors.elasticsearch.options import RESERVED, Elasticsearch
from flumeng.events import identity, json_text
from flumeng.platform.errors import UserError

TIME_OF_STREAMS = "@timestamp"


class Bodies:
    def __init__(self, options: Elasticsearch) -> None:
        self._names = IndexNames(options.index)
        self._identified = options.id == "event"
        self._routing = options.routing
        self._streams = options.data_stream
        self.op = "create" if options.data_stream else options.op

    def check(self, events: pa.Schema) -> None:
        """Raises UserError when ``events`` do not have the columns that are needed."""
        self._names.check(events)
        if self._routing is not None and self._routing not in events.names:
            raise UserError(f"routing needs the column {self._routing}, which is not there")
        kind = None if self._routing is None else events.field(self._routing).type
        if kind is not None and (pa.types.is_nested(kind) or pa.types.is_binary(kind)):
            raise UserError(f"routing cannot be the column {self._routing}, which is {kind}")
        if self._streams and "ts" not in events.names:
            raise UserError("a data stream needs the column ts, which select has dropped")
        if reserved := sorted(RESERVED.intersection(events.names)):
            raise UserError(
                f"{', '.join(reserved)}: Elasticsearch keeps such fields for itself: rename the "
                "column"
            )

    def lines(self, events: pa.RecordBatch) -> pa.BinaryArray:
        """The two lines of each event, with their ends."""
        parts: list[bytes | pa.Array] = [b'{"%s":{"_index":"' % self.op.encode()]
        parts += self._names.of(events)
        if self._identified:
            parts += [b'","_id":"', *_id(events)]
        parts.append(b'"')
        if self._routing is not None:
            parts.append(_routing(events.column(self._routing)))
        documents = json_text.rows(keys.taken(self._documents(identity.strip(events))))
        return pc.binary_join_element_wise(*parts, b"}}\n", documents, b"\n", b"")

    def _documents(self, events: pa.RecordBatch) -> pa.RecordBatch:
        if not self._streams:
            return events
        return events.rename_columns({"ts": TIME_OF_STREAMS})


def _id(events: pa.RecordBatch) -> list[bytes | pa.Array]:
    journal = json_text.escaped(events.column(identity.JOURNAL).cast(pa.binary()))
    seq = events.column(identity.SEQ).cast(pa.string()).cast(pa.binary())
    return [journal, b"-", seq]


def _routing(column: pa.Array) -> pa.Array:
    text = json_text.escaped(column.cast(pa.string()).cast(pa.binary()))
    return pc.fill_null(pc.binary_join_element_wise(b',"routing":"', text, b'"', b""), b"")
