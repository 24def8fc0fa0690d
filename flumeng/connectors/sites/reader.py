"""Reads ranges of journals of another site through its gateways, and cuts loops."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.api.ranged import Range, Split
from flumeng.connectors.sites.names import journal_of, site_of, source_of
from flumeng.events.schema import READ_SCHEMA
from flumeng.journal.log.errors import DataLossError
from flumeng.journal.log.frame import FrameHeader, identity
from flumeng.journal.serving import wire
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.proof import Proof
from flumeng.platform.connection_pool import ConnectionPool
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from flumeng.connectors.sites.gateways import Gateways

log = logging.getLogger(__name__)

READ_SECONDS = 30.0
SITES = "sites"
"""The column with the sites that an event has passed, and the attribute from which it goes on."""
SCHEMA = pa.schema([*READ_SCHEMA, pa.field(SITES, pa.string())])

_idle: ConnectionPool[tuple[str, Proof | None], JournalClient] = ConnectionPool()
_loops = RateLimitedLog(log)


@dataclass(frozen=True)
class SiteReader:
    """``Reader`` of a remote flow; an address is ``host:port[,host:port]``. ``here``: this site.
    ``gateways`` give the proof, and are not pickled."""

    site: str
    here: str
    proof: Proof | None = None
    gateways: Gateways | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "proof": self._proof(), "gateways": None}

    def _proof(self) -> Proof | None:
        return self.gateways.proof() if self.gateways else self.proof

    def credentials(self) -> Hashable:
        return self._proof()

    def admitted(self, splits: Sequence[Split], addresses: Mapping[str, str]) -> dict[str, str]:
        del splits  # the certificate is enough
        return dict(addresses)

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def modules(self) -> frozenset[str]:
        return frozenset()

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Yield the events. When a gateway fails, the next one continues behind the last event."""
        if site_of(piece.partition) != self.site:
            raise UserError(f"the flow no longer reads the site of {piece.partition}")
        journal, source = journal_of(piece.partition), source_of(piece.partition)
        proof, gateways = self._proof(), address.split(",")
        seq, failures = piece.start, 0
        while seq < piece.end:
            began = seq
            try:
                with _client(gateways[failures % len(gateways)], proof) as client:
                    for batch in client.read(journal, seq, piece.end, replayed=piece.replayed):
                        seq = batch.column("seq")[-1].as_py() + 1
                        events = self._marked(batch, source)
                        if events.num_rows:
                            yield events
                return
            except UnavailableError:
                failures = failures + 1 if seq == began else 1
                if failures >= len(gateways) and seq == began:
                    raise

    def term_of(self, partition: str, seq: int, address: str) -> int:
        """Return the term in which the event was written. Raises as ``read``."""
        journal, proof = journal_of(partition), self._proof()
        owner = identity(journal)
        with _client(address.partition(",")[0], proof) as client:
            batches = list(client.copy(journal, seq, seq + 1))
        for frame in (frame for batch in batches for frame in wire.frames_of(batch, address)):
            header = FrameHeader.unpack(frame, 0, owner)
            if header.first_seq <= seq < header.end:
                return header.term
        raise DataLossError(f"journal {journal}: seq {seq} is missing")

    def _marked(self, batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
        """Add the passed sites; drop events that this site has sent."""
        columns = {name: batch.column(name) for name in READ_SCHEMA.names}
        columns["journal"] = pa.repeat(source, batch.num_rows)
        columns[SITES] = pa.repeat(self.site, batch.num_rows)
        passed = passed_sites(batch.column("attrs"))
        if passed is not None:
            columns[SITES] = pc.binary_join_element_wise(
                passed, columns[SITES], ",", null_handling="skip"
            )
        events = pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)
        if passed is None:
            return events
        returned = pc.fill_null(
            pc.match_substring(pc.binary_join_element_wise("", passed, "", ","), f",{self.here},"),
            fill_value=False,
        )
        if pc.any(returned).as_py():
            _loops.warning(
                "journal %s: %d events have passed this site, and are dropped: the flows form a "
                "loop. More within a minute are not logged",
                *(source, pc.sum(returned).as_py()),
            )
        return events.filter(pc.invert(returned))


def passed_sites(attrs: pa.MapArray) -> pa.Array | None:
    """Return the attribute ``sites`` of each event; None when no event has it."""
    start, end = attrs.offsets[0].as_py(), attrs.offsets[-1].as_py()
    keys = attrs.keys.slice(start, end - start)
    if not pc.any(pc.equal(keys, SITES)).as_py():
        return None
    return pc.map_lookup(attrs, SITES, "first")


@contextmanager
def _client(address: str, proof: Proof | None) -> Iterator[JournalClient]:
    """Provide a client of the gateway; it is reused unless this read fails."""
    key = address, proof
    client = _idle.take(key) or JournalClient(address, READ_SECONDS, prove=lambda: proof)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _idle.keep(key, client)
