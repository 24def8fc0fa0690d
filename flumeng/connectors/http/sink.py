"""HTTP sink: events as JSON in retried requests. With exactly-once delivery, requests and keys
depend only on a split's events, their order and the batch number: a repeated batch repeats them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from flumeng.connectors.api import chunks
from flumeng.connectors.api.backoff import Backoff
from flumeng.connectors.api.dead_letters import Refuse, schema_around
from flumeng.connectors.api.sink import Attempt, BatchId, Row, TaskRevision, Written
from flumeng.connectors.http.receiver import (
    RETRY_SECONDS,
    Endpoint,
    RefusedRequestError,
    TooLargeError,
    reach,
    send,
)
from flumeng.connectors.http.sink_options import Http
from flumeng.events import identity, json_text
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform import secrets
from flumeng.platform.errors import UserError

CONTENT_TYPES = {"ndjson": "application/x-ndjson", "json": "application/json"}
CHUNK_BYTES = 16 * 1024 * 1024
"""Most bytes of events that are converted to JSON together."""
COUNT_SCHEMA = pa.schema([pa.field("events", pa.int64())])


class HttpSink:
    roots = ()
    identified = True

    def __init__(self, options: Http, _task: TaskRevision) -> None:
        headers = {"Content-Type": CONTENT_TYPES[options.format], **_resolved(options.headers)}
        if options.compression != "none":
            headers["Content-Encoding"] = options.compression
        self._options = options
        self._endpoint = Endpoint(
            options.url, options.method, tuple(headers.items()), options.ca, options.timeout_seconds
        )

    @property
    def writes_at_once(self) -> bool:
        return self._options.idempotent

    def probe(self) -> None:
        reach(self._endpoint)

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        if attempt.batch is not None and not identity.present(batch.schema):
            raise UserError(
                "http cannot take the dead letters of an exactly-once flow: their split of the "
                "batch is unknown"
            )
        letters = attempt.dead_letters
        patience = attempt.patience_seconds
        stage = SendSplit(self._options, self._endpoint, attempt.batch, letters.place, patience)
        return batch.arrow(letters.around(stage, COUNT_SCHEMA), schema_around(COUNT_SCHEMA))

    def written(self, rows: Sequence[Row]) -> Written:
        return Written(sum(row["events"] for row in rows))


@dataclass(frozen=True)
class Request:
    """A request. ``number``: its number in the split; halves get ``number.0`` and ``number.1``."""

    number: str
    events: tuple[pa.RecordBatch, ...]
    texts: tuple[bytes, ...]

    def halves(self) -> Iterator[Request]:
        whole = pa.Table.from_batches(self.events)
        half = len(self.texts) // 2
        for part, (first, end) in enumerate(((0, half), (half, len(self.texts)))):
            events = tuple(whole.slice(first, end - first).to_batches())
            yield Request(f"{self.number}.{part}", events, self.texts[first:end])


@dataclass(frozen=True)
class SendSplit:
    """Stage that sends a split, and yields the number of events. ``sink``: its name in the flow."""

    options: Http
    endpoint: Endpoint
    batch: BatchId | None
    sink: str
    patience_seconds: float | None = None

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        events = 0
        pauses = Backoff(RETRY_SECONDS, self.patience_seconds)
        for request in requests(batches, self.options.request_bytes):
            self._send(request, refuse, pauses)
            events += len(request.texts)
        yield pa.RecordBatch.from_arrays([pa.array([events], pa.int64())], schema=COUNT_SCHEMA)

    def _send(self, request: Request, refuse: Refuse, pauses: Backoff) -> None:
        try:
            body, key = self._body(request.texts), self._key(request)
            send(self.endpoint, body, key, pauses)
        except TooLargeError as error:
            if len(request.texts) == 1:
                refuse(request.events[0], [str(error)])
                return
            for half in request.halves():
                self._send(half, refuse, pauses)
        except RefusedRequestError as error:
            for part in request.events:
                refuse(part, [str(error)] * part.num_rows)

    def _body(self, texts: Sequence[bytes]) -> bytes:
        if self.options.format == "json":
            body = b"[" + b",".join(texts) + b"]"
        else:
            body = b"\n".join(texts) + b"\n"
        if self.options.compression == "none":
            return body
        return bytes(pa.compress(body, codec=self.options.compression, asbytes=True))

    def _key(self, request: Request) -> str:
        if self.batch is None:
            return uuid.uuid4().hex
        split = request.events[0].column(identity.SPLIT)[0].as_py()
        identifiers = (self.batch.series, self.sink, self.batch.number, split, request.number)
        return hashlib.sha256("\n".join(map(str, identifiers)).encode()).hexdigest()[:32]


def requests(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[Request]:
    """Yield events in requests of at most ``most_bytes`` of JSON, or of one larger event."""
    number = size = 0
    events: list[pa.RecordBatch] = []
    texts: list[bytes] = []
    for chunk in chunks.cut(batches, CHUNK_BYTES):
        first = 0
        rows = json_text.rows(identity.strip(chunk)).to_pylist()
        for row, text in enumerate(rows):
            if texts and size + len(text) + 1 > most_bytes:
                events += [chunk.slice(first, row - first)] if row > first else []
                yield Request(str(number), tuple(events), tuple(texts))
                number, size, first, events, texts = number + 1, 0, row, [], []
            texts.append(text)
            size += len(text) + 1
        events.append(chunk.slice(first))
    if texts:
        yield Request(str(number), tuple(events), tuple(texts))


def _resolved(headers: Mapping[str, str]) -> dict[str, str]:
    resolved = secrets.filled(headers)
    for name, whole in resolved.items():
        if not whole.isascii() or not whole.isprintable():
            raise UserError(f"http: the value of the header {name} is not printable ASCII")
    return resolved
