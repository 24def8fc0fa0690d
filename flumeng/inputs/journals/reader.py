"""Reads ranges of journals from the ingest workers that serve them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from flumeng.inputs import Range
from flumeng.journal.client import JournalClient
from flumeng.journal.schema import READ_SCHEMA
from flumeng.runtime.idle_clients import IdleClients

READ_SECONDS = 5.0
"""A server that sends no frame for so long is left out. A link has to carry a frame in that time:
4 MiB at most, but for batches that were larger than that already."""

_idle: IdleClients[str, JournalClient] = IdleClients()


@contextmanager
def _client(address: str) -> Iterator[JournalClient]:
    """A client of that server. It is kept for the next read when this one raises nothing."""
    client = _idle.take(address) or JournalClient(address, READ_SECONDS)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _idle.keep(address, client)


@dataclass(frozen=True)
class JournalReader:
    """See ``Reader``; an address is the host:port of a server."""

    @property
    def schema(self) -> pa.Schema:
        return READ_SCHEMA

    @property
    def modules(self) -> frozenset[str]:
        return frozenset()

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        with _client(address) as client:
            yield from client.read(piece.partition, piece.start, piece.end, replayed=piece.replayed)
