"""Stage that indexes a split by a few concurrent requests of some megabytes. Temporarily rejected
events are sent again. Without progress for RETRY_SECONDS, at first less, the batch is retried."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from flumeng.connectors.api import chunks
from flumeng.connectors.api.backoff import Backoff
from flumeng.connectors.api.dead_letters import Refuse
from flumeng.connectors.elasticsearch import bulk_response
from flumeng.connectors.elasticsearch.bulk_body import BulkBody
from flumeng.connectors.elasticsearch.bulk_response import Verdict
from flumeng.connectors.elasticsearch.cluster import (
    Cluster,
    Connection,
    OverloadedError,
    TooLargeError,
    connect,
)
from flumeng.connectors.elasticsearch.template import Template
from flumeng.events import json_text
from flumeng.filters.refused_times import refused as count_refused
from flumeng.platform.errors import UnavailableError

AT_ONCE = 2
RETRY_SECONDS = 30.0
GATHERED_BYTES = 4 * 1024 * 1024
DONE_SCHEMA = pa.schema([pa.field("events", pa.int64()), pa.field("refused", pa.int64())])
"""Output columns of the stage; ``refused`` counts events with an implausible time."""

Refused = tuple[pa.RecordBatch, Sequence[str]]
"""Refused events, and the reason for each."""


@dataclass(frozen=True)
class IndexEvents:
    """Indexes the events of a split, and yields one row of DONE_SCHEMA."""

    connection: Connection
    bulk_body: BulkBody
    template: Template | None = None
    patience_seconds: float | None = None
    steady_index: str | None = None
    """The option ``index`` when duplicates are forbidden, otherwise None."""

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        cluster = connect(self.connection)
        indexed = far = 0
        fresh = True
        with ThreadPoolExecutor(AT_ONCE, "bulk") as pool:
            waiting: deque[Future[list[Refused]]] = deque()
            for request in self._requests(batches, cluster):
                if len(waiting) == AT_ONCE:
                    indexed -= _pass_on(waiting.popleft(), refuse)
                    fresh = False
                waiting.append(pool.submit(send, request, cluster, self._backoff(fresh=fresh)))
                indexed += len(request)
                far += count_refused(pa.Table.from_batches([request.events]))
            while waiting:
                indexed -= _pass_on(waiting.popleft(), refuse)
        yield pa.RecordBatch.from_arrays(
            [pa.array([indexed], pa.int64()), pa.array([far], pa.int64())], schema=DONE_SCHEMA
        )

    def _requests(self, batches: Iterator[pa.RecordBatch], cluster: Cluster) -> Iterator[Request]:
        for events in chunks.gathered(batches, GATHERED_BYTES):
            if self.template is not None:
                repeat(partial(cluster.install, self.template), self._backoff(fresh=True))
            if self.steady_index is not None:
                check = partial(cluster.require_steady, self.steady_index)
                repeat(check, self._backoff(fresh=True))
            yield from Request(events, self.bulk_body.lines(events)).cut(cluster.size.bytes)

    def _backoff(self, *, fresh: bool) -> Backoff:
        backoff = Backoff(RETRY_SECONDS, self.patience_seconds)
        if not fresh:
            backoff.progressed()
        return backoff


def _pass_on(sent: Future[list[Refused]], refuse: Refuse) -> int:
    """Wait for a request, report its refused events, and return their number."""
    count = 0
    for events, reasons in sent.result():
        refuse(events, reasons)
        count += len(reasons)
    return count


@dataclass(frozen=True)
class Request:
    events: pa.RecordBatch
    lines: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def body(self) -> bytes:
        return json_text.content_of(self.lines).tobytes()

    @property
    def bytes(self) -> int:
        return len(json_text.content_of(self.lines))

    def cut(self, most_bytes: int) -> Iterator[Request]:
        """Split the request into parts of equal length, of up to about ``most_bytes``."""
        rows = max(1, len(self) * most_bytes // max(self.bytes, 1))
        parts = math.ceil(len(self) / rows)
        rows = math.ceil(len(self) / parts)
        for start in range(0, len(self), rows):
            yield Request(self.events.slice(start, rows), self.lines.slice(start, rows))

    def take(self, places: Sequence[int]) -> Request:
        rows = pa.array(places, pa.int64())
        return Request(self.events.take(rows), self.lines.take(rows))


def repeat(ask: Callable[[], None], backoff: Backoff) -> None:
    """Call ``ask`` until the cluster answers. Raises UnavailableError when it fails for too long,
    UserError for a permanent error."""
    while True:
        try:
            ask()
            return
        except UnavailableError as error:
            backoff.pause(error)


def send(request: Request, cluster: Cluster, backoff: Backoff) -> list[Refused]:
    """Index the events of ``request``, and return the refused ones with reasons. Raises
    UnavailableError when retries are exhausted, UserError for a permanent error."""
    refused: list[Refused] = []
    waiting = deque([request])
    while waiting:
        part = waiting.popleft()
        if len(part) > 1 and part.bytes > 2 * cluster.size.bytes:
            waiting.extendleft(part.cut(cluster.size.bytes))
            continue
        try:
            verdict = _attempt(part, cluster)
        except TooLargeError as error:
            cluster.size.shrink()
            if len(part) == 1:
                refused.append((part.events, [str(error)]))
            else:
                waiting.extendleft(part.cut(part.bytes // 2))
            continue
        except UnavailableError as error:
            if isinstance(error, OverloadedError):
                cluster.size.shrink()
            backoff.pause(error)
            waiting.appendleft(part)
            continue
        if len(verdict.again) < len(part):
            backoff.progressed()
        if verdict.refused:
            places, reasons = zip(*verdict.refused, strict=True)
            refused.append((part.take(places).events, reasons))
        if verdict.again:
            if verdict.overloaded:
                cluster.size.shrink()
            backoff.pause(UnavailableError(f"elasticsearch: {verdict.trouble}"))
            waiting.appendleft(part.take(verdict.again))
        elif part.bytes > cluster.size.bytes // 2:
            cluster.size.grow()
    return refused


def _attempt(part: Request, cluster: Cluster) -> Verdict:
    try:
        return bulk_response.interpret(cluster.bulk(part.body), len(part))
    except ValueError as error:  # of msgspec too
        raise UnavailableError(f"elasticsearch: invalid bulk response: {error}") from error
