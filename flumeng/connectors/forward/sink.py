"""Forwards events over a TCP or TLS stream, at least once as far as TCP can confirm. TCP
acknowledges nothing to the sender, so each split has its own connection. The split is written when
the server has read to its end and closes. After an earlier close or error the batch is repeated."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.api.backoff import CONNECT_SECONDS
from flumeng.connectors.api.sink import Attempt, Row, TaskRevision, Written
from flumeng.connectors.forward import syslog_text
from flumeng.connectors.forward.options import ForwardSyslog, ForwardTcp
from flumeng.events import json_text
from flumeng.events.columns import check_plain, texts
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform.errors import UnavailableError

PIECE_BYTES = 1024 * 1024
AVOID_SECONDS = 60.0
"""A failed target is tried last for this long."""
Framing = Literal["newline", "octet-counted", "length-prefixed"]
LINE_FEED = b"#012"
"""Replaces a line feed within a message, as in rsyslog."""
COUNT_SCHEMA = pa.schema([pa.field("events", pa.int64())])

_failed_at: dict[str, float] = {}
"""Last failure of each target in this process, in monotonic seconds."""


class ForwardSink:
    roots = ()
    identified = writes_at_once = False

    def __init__(self, options: ForwardSyslog | ForwardTcp, _task: TaskRevision) -> None:
        self._options = options

    def probe(self) -> None:
        """Raise UnavailableError unless all targets, including standbys, accept a connection."""
        failed = []
        for target in self._options.targets:
            try:
                _Connection(target, self._options.tls, self._options.timeout_seconds).close()
            except UnavailableError as error:
                failed.append(str(error))
        if failed:
            raise UnavailableError("; ".join(failed))

    def stage(self, batch: LazyBatch, _attempt: Attempt) -> LazyBatch:
        if self._options.message == "rfc5424":
            syslog_text.check(batch.schema)
        elif self._options.message == "body":
            check_plain(batch.schema, ["body"], "message")
        return batch.arrow(Forward(self._options), COUNT_SCHEMA)

    def written(self, rows: Sequence[Row]) -> Written:
        return Written(sum(row["events"] for row in rows))


@dataclass(frozen=True)
class Forward:
    options: ForwardSyslog | ForwardTcp

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        connection: _Connection | None = None
        try:
            for events in batches:
                if connection is None:
                    connection = self._connect()
                connection.send(framed(self._messages(events), self.options.framing))
                count += events.num_rows
            if connection is not None:
                connection.finish(wait_for_close=self.options.wait_for_close)
        finally:
            if connection is not None:
                connection.close()
        yield pa.RecordBatch.from_pylist([{"events": count}], COUNT_SCHEMA)

    def _messages(self, events: pa.RecordBatch) -> pa.BinaryArray:
        if self.options.message == "body":
            return texts(events.column("body"))
        if self.options.message == "json":
            return json_text.rows(events)
        return syslog_text.rows(events)

    def _connect(self) -> _Connection:
        """Connect to the first target that answers; those with recent failures come last."""
        recent = time.monotonic() - AVOID_SECONDS
        targets = self.options.targets
        errors = []
        for target in sorted(targets, key=lambda a: _failed_at.get(a, recent) > recent):
            try:
                return _Connection(target, self.options.tls, self.options.timeout_seconds)
            except UnavailableError as error:
                errors.append(str(error))
        raise UnavailableError("; ".join(errors))


class _Connection:
    """A connection to a target. Errors become UnavailableError; the target is then tried last."""

    def __init__(self, target: str, tls: ClientTls | None, seconds: float) -> None:
        self._target = target
        host, _, port = target.rpartition(":")
        host = host.strip("[]")
        context = None if tls is None else tls.context()
        with self._translated("connect"):
            self._socket = socket.create_connection(
                (host, int(port)), min(seconds, CONNECT_SECONDS)
            )
            self._socket.settimeout(seconds)
            try:
                if context is not None:
                    self._socket = context.wrap_socket(self._socket, server_hostname=host)
            except BaseException:
                self._socket.close()
                raise

    def send(self, content: memoryview) -> None:
        with self._translated("send"):
            for start in range(0, len(content), PIECE_BYTES):
                self._socket.sendall(content[start : start + PIECE_BYTES])

    def finish(self, *, wait_for_close: bool) -> None:
        """End the stream; if ``wait_for_close``, wait until the server has read all and closes."""
        with self._translated("close"):
            self._require_open()
            if isinstance(self._socket, ssl.SSLSocket):
                self._finish_tls()
            self._socket.shutdown(socket.SHUT_WR)
            while wait_for_close and self._socket.recv(65536):
                """Data from the server is ignored."""

    def close(self) -> None:
        self._socket.close()

    def _require_open(self) -> None:
        """Raise an error when the server has already closed: it did not read the last data."""
        seconds = self._socket.gettimeout()
        self._socket.setblocking(False)
        try:
            while True:
                if not self._socket.recv(65536):
                    raise ConnectionResetError("the server closed the connection before the end")
        except (BlockingIOError, ssl.SSLWantReadError):
            self._socket.settimeout(seconds)

    def _finish_tls(self) -> None:
        """End TLS. A server that closes without an answer has read all data."""
        assert isinstance(self._socket, ssl.SSLSocket)
        with suppress(ssl.SSLEOFError, ssl.SSLZeroReturnError):
            self._socket = self._socket.unwrap()

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _failed_at[self._target] = time.monotonic()
            text = error.strerror or str(error)
            raise UnavailableError(f"server {self._target} ({doing}): {text}") from error


def framed(messages: pa.BinaryArray, framing: Framing) -> memoryview:
    """Return all messages in one buffer, framed; a null is an empty message."""
    messages = pc.fill_null(messages, b"")
    if framing == "newline":
        lines = pc.replace_substring(messages, b"\n", LINE_FEED)
        return _bytes(pc.binary_join_element_wise(lines, b"\n", b""))
    lengths = pc.binary_length(messages)
    if framing == "octet-counted":
        counts = lengths.cast(pa.string()).cast(pa.binary())
        return _bytes(pc.binary_join_element_wise(counts, b" ", messages, b""))
    prefixes = lengths.to_numpy(zero_copy_only=False).astype(">u4")
    fixed = pa.Array.from_buffers(pa.binary(4), len(prefixes), [None, pa.py_buffer(prefixes)])
    return _bytes(pc.binary_join_element_wise(fixed.cast(pa.binary()), messages, b""))


def _bytes(parts: pa.BinaryArray) -> memoryview:
    """Return the concatenated values without a copy."""
    _, offsets, values = parts.buffers()
    if values is None or not len(parts):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int32)
    first, last = bounds[parts.offset], bounds[parts.offset + len(parts)]
    return memoryview(values)[first:last]
