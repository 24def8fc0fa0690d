"""Converts lines to events as a source would, but without attributes of a real sender or file."""

from __future__ import annotations

import socket
import time
from array import array
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flumeng.agent.ingest.batch import build
from flumeng.config import FlowSpec
from flumeng.config.component import Component, SourceOptions
from flumeng.connectors.api.framing import Messages
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.connectors.tail.options import UTF_8
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import UserError

JOURNAL = "trial"
MAX_LINE_BYTES = 1 << 20
FROM_THE_NETWORK = ("syslog", "tcp", "udp", "http")
TRAILERS = {"syslog": b"\n\r\0", "kafka": b""}


class ReceivedLines:
    """Converts lines to events of the source ``number`` of a flow, with the source's host and
    attributes unless others are given. ``ts``: in microseconds since 1970, by default now.
    ``filtered_by``: the upstream flow whose filters would run first; they do not run here."""

    def __init__(
        self,
        spec: FlowSpec,
        number: int = 0,
        *,
        host: str | None = None,
        attrs: Mapping[str, str] | None = None,
        ts: int | None = None,
    ) -> None:
        if not 0 <= number < len(spec.sources):
            raise UserError(
                f"flow {spec.flow} has no source {number}, only {len(spec.sources)} numbered from 0"
            )
        source = spec.sources[number]
        self.filtered_by = source.options.filtered_by or None
        self.max_line_bytes = int(getattr(source.options, "max_line_bytes", MAX_LINE_BYTES))
        self.encoding = str(getattr(source.options, "encoding", UTF_8))
        self._host = _host(source) if host is None else host
        self._attrs = {} if source.name == "kafka" else {"source": source.name}
        self._attrs |= attrs or {}
        self._rules = LineRules(
            self.max_line_bytes,
            TRAILERS.get(source.name, b"\r"),
            keep_empty=source.name not in FROM_THE_NETWORK,
        )
        self.multiline = spec.multiline
        self._ts = ts
        self._origin = self.origin()
        self._next = 0
        self._topics = next(
            (part.options.topics for part in spec.sources if isinstance(part.options, KafkaSource)),
            None,
        )
        self.schema = READ_SCHEMA if self._topics is None else _message_schema()

    def origin(self, host: str | None = None, attrs: Mapping[str, str] | None = None) -> Origin:
        attributes = tuple((self._attrs | dict(attrs or {})).items())
        return Origin(self._host if host is None else host, attributes, self._rules)

    def events(self, lines: Messages) -> list[pa.RecordBatch]:
        """Return the events of whole lines, without empty lines that the source would drop."""
        return self._built(ReceivedBlock(lines.data, self._origin, self._now(), lines.bounds))

    def event(self, body: bytes, origin: Origin, ts: int | None = None) -> list[pa.RecordBatch]:
        """Return the event of one body, which may contain line ends."""
        bounds = array("q", [0]), array("q", [len(body)])
        received = self._now() if ts is None else ts
        return self._built(ReceivedBlock(body, origin, received, bounds))

    def _now(self) -> int:
        return time.time_ns() // 1000 if self._ts is None else self._ts

    def _built(self, block: ReceivedBlock) -> list[pa.RecordBatch]:
        frames = (frame for frame, _ in build([block], lambda _: None))
        return [self._read(frame) for frame in frames if frame.num_rows]

    def _read(self, frame: pa.RecordBatch) -> pa.RecordBatch:
        count = frame.num_rows
        numbers = np.arange(self._next, self._next + count)
        self._next += count
        added = dict(self._of_reader(count, numbers))
        columns = [
            frame[field.name] if field.name in frame.schema.names else added[field.name]
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _of_reader(self, count: int, numbers: NDArray[np.int64]) -> Iterator[tuple[str, pa.Array]]:
        yield "journal", pa.repeat(pa.scalar(JOURNAL), count)
        yield "seq", pa.array(numbers)
        yield "replayed", pa.repeat(pa.scalar(False), count)
        if self._topics is not None:
            yield "topic", pa.repeat(pa.scalar(self._topics[0]), count)
            yield "partition", pa.repeat(pa.scalar(0, pa.int32()), count)
            yield "key", pa.nulls(count, pa.binary())
            kind = self.schema.field("headers").type
            yield "headers", pa.array([[]], kind).take(pa.repeat(pa.scalar(0), count))


def _host(source: Component[SourceOptions]) -> str:
    if source.name == "kafka":
        return ""
    return "127.0.0.1" if source.name in FROM_THE_NETWORK else socket.gethostname()


def _message_schema() -> pa.Schema:
    try:
        from flumeng.connectors.kafka.messages import MESSAGE_SCHEMA  # noqa: PLC0415  loads librdkafka
    except ImportError as error:
        raise UserError("confluent-kafka is not installed: pip install 'flumeng[kafka]'") from error
    return MESSAGE_SCHEMA
