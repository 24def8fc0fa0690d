"""Events to the next hop over a stream: at least once, as far as TCP can tell.

TCP does not acknowledge to whom it is used by, so each split has a connection of its own: it is
written when the server has read to the end of it and closed it. A server closes before that when it
ends; then, as after any other error, the batch fails and is repeated.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.api.backoff import CONNECT_SECONDS
from flumeng.connectors.api.sink import Attempt, Row, TaskRevision, Written
from flumeng.connectors.forward import syslog_text
from flumeng.connectors.forward.framed import framed
from flumeng.connectors.forward.options import ForwardSyslog, ForwardTcp
from flumeng.events import json_text
from flumeng.events.column_text import check_plain, texts
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform.errors import UnavailableError, UserError

PIECE_BYTES = 1024 * 1024
AVOID_SECONDS = 60.0
"""A target that has failed is the last choice for so long."""
COUNT_SCHEMA = pa.schema([pa.field("events", pa.int64())])

_failed_at: dict[str, float] = {}
"""When each target has failed last, in this process."""


class ForwardSink:
    roots = ()
    identified = writes_at_once = False

    def __init__(self, options: ForwardSyslog | ForwardTcp, _task: TaskRevision) -> None:
        self._options = options

    def probe(self) -> None:
        """Each target has to take a connection, also those that stand by."""
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
    """Sends a split's events, and yields how many they were."""

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
        """To the first target that answers; those that have failed lately come last."""
        now = time.monotonic()
        said = []
        for target in sorted(self.options.targets, key=lambda one: _avoided(one, now)):
            try:
                return _Connection(target, self.options.tls, self.options.timeout_seconds)
            except UnavailableError as error:
                said.append(str(error))
        raise UnavailableError("; ".join(said))


class _Connection:
    """Its methods raise UnavailableError, and its target is then avoided for a while."""

    def __init__(self, target: str, tls: ClientTls | None, seconds: float) -> None:
        self._target = target
        host, _, port = target.rpartition(":")
        host = host.strip("[]")
        context = None if tls is None else _context(tls)
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
        """Say that nothing follows, and wait until the server has read that and closes too."""
        with self._translated("close"):
            self._require_open()
            if isinstance(self._socket, ssl.SSLSocket):
                self._finish_tls()
            self._socket.shutdown(socket.SHUT_WR)
            while wait_for_close and self._socket.recv(65536):
                """What a server says is nothing to us."""

    def close(self) -> None:
        self._socket.close()

    def _require_open(self) -> None:
        """A server that has closed already has not read what came after that."""
        seconds = self._socket.gettimeout()
        self._socket.setblocking(False)
        try:
            while True:
                if not self._socket.recv(65536):
                    raise ConnectionResetError("the server has closed in the middle")
        except (BlockingIOError, ssl.SSLWantReadError):
            self._socket.settimeout(seconds)

    def _finish_tls(self) -> None:
        """Tell the server in TLS too; one that closes at once without telling so has read it."""
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
            raise UnavailableError(f"{self._target} ({doing}): {text}") from error


def _avoided(target: str, now: float) -> bool:
    return now - _failed_at.get(target, -AVOID_SECONDS) < AVOID_SECONDS


def _context(tls: ClientTls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        raise UserError(f"tls: {error.filename or tls.ca or tls.certificate}: {error}") from error
    return context
