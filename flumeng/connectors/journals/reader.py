"""Reads ranges of journals from the ingest workers that serve them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flumeng.connectors.api.ranged import Range, Split
from flumeng.connectors.ranged.reading import bounds
from flumeng.control.snapshot.partitions import journal_of
from flumeng.events.schema import READ_SCHEMA
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.proof import Proof
from flumeng.platform.connection_pool import ConnectionPool

if TYPE_CHECKING:
    from flumeng.connectors.journals.executor_tokens import ExecutorTokens

READ_SECONDS = 5.0
"""Time-out of a frame, which has up to 4 MiB unless a batch was larger."""

_idle: ConnectionPool[tuple[str, Proof | None], JournalClient] = ConnectionPool()


@contextmanager
def _client(address: str, proof: Proof | None) -> Iterator[JournalClient]:
    """Provide a client of the server. Later reads reuse it unless this read fails."""
    key = address, proof
    client = _idle.take(key) or JournalClient(address, READ_SECONDS, prove=lambda: proof)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _idle.keep(key, client)


@dataclass(frozen=True)
class JournalReader:
    """``Reader`` of journals. An address is ``host:port``, or ``host:port token``. ``proof``: sent
    to servers; pickling takes it from ``executor_tokens``."""

    proof: Proof | None = None
    executor_tokens: ExecutorTokens | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "proof": self._proof(), "executor_tokens": None}

    def _proof(self) -> Proof | None:
        return self.executor_tokens.proof() if self.executor_tokens else self.proof

    def credentials(self) -> Hashable:
        return self._proof()

    def admitted(self, splits: Sequence[Split], addresses: Mapping[str, str]) -> dict[str, str]:
        if self.executor_tokens is None:
            return dict(addresses)
        return {
            name: f"{addresses[name]} {self.executor_tokens.token(journal_of(name), start, end)}"
            for name, (start, end) in bounds(splits).items()
        }

    @property
    def schema(self) -> pa.Schema:
        return READ_SCHEMA

    @property
    def modules(self) -> frozenset[str]:
        return frozenset()

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        server, _, token = address.partition(" ")
        proof = self._proof()
        if token and proof is not None:
            token = f"{token}.{proof.signer}"
        with _client(server, proof) as client:
            yield from client.read(
                journal_of(piece.partition),
                piece.start,
                piece.end,
                replayed=piece.replayed,
                token=token,
            )
