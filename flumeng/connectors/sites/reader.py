"""Reads ranges of journals of another site through its gateways, and cuts loops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.api.ranged import Range, Split
from flumeng.connectors.ranged import reports
from flumeng.connectors.sites import fetching
from flumeng.connectors.sites.fetching import Place
from flumeng.connectors.sites.handshakes import plain
from flumeng.connectors.sites.names import journal_of, site_of, source_of
from flumeng.events.schema import READ_SCHEMA
from flumeng.journal.log.errors import DataLossError, ThrottledError
from flumeng.journal.log.frame import FrameHeader, identity
from flumeng.journal.log.reading import rows
from flumeng.journal.serving import filtered_wire
from flumeng.journal.serving.proof import Proof
from flumeng.journal.serving.wire import NO_CHOKE, Choke
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.rate_limited_log import RateLimitedLog
from flumeng.platform.security.expiry import utc_now

if TYPE_CHECKING:
    from flumeng.connectors.sites.gateways import Gateways

log = logging.getLogger(__name__)

SITES = "sites"
"""The column with the sites that an event has passed, and the attribute from which it goes on."""
LOOPED = "looped events"
"""The count of dropped events in the reports of a batch."""
_SITES = pa.field(SITES, pa.string())
SCHEMA = pa.schema([*READ_SCHEMA, _SITES])

_loops = RateLimitedLog(log)


@dataclass(frozen=True)
class Filtered:
    """Filters that the other site runs for this reader: their ``name``, and the ``schema`` of the
    events behind them."""

    name: str
    schema: pa.Schema

    @property
    def read_schema(self) -> pa.Schema:
        return pa.schema([*filtered_wire.read_schema(self.schema), _SITES])


@dataclass(frozen=True)
class SiteReader:
    """``Reader`` of a remote flow; an address is ``host:port[,host:port]``. ``here``: this site.
    ``gateways`` give the proof and the link's limit. ``current``: returns the name of the flow's
    filters at the other site, "" while unknown. These two are not pickled."""

    site: str
    here: str
    proof: Proof | None = None
    gateways: Gateways | None = None
    choke: Choke = NO_CHOKE
    filtered: Filtered | None = None
    current: Callable[[], str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        given = {"proof": self._proof(), "choke": self._choke(), "gateways": None, "current": None}
        return {**self.__dict__, **given}

    @property
    def filters(self) -> str:
        return self.filtered.name if self.filtered else ""

    @property
    def outdated(self) -> bool:
        current = self.current() if self.current else ""
        return current not in ("", self.filters)

    def _proof(self) -> Proof | None:
        return self.gateways.proof() if self.gateways else self.proof

    def _choke(self) -> Choke:
        if self.gateways is None:
            return self.choke
        link = self.gateways.site_record().bytes_per_second
        return replace(self.choke, link_bytes_per_second=link)

    def credentials(self) -> Hashable:
        return self._proof(), self._choke()

    def admitted(self, splits: Sequence[Split], addresses: Mapping[str, str]) -> dict[str, str]:
        del splits  # the certificate is enough
        return dict(addresses)

    @property
    def schema(self) -> pa.Schema:
        return self.filtered.read_schema if self.filtered else SCHEMA

    @property
    def modules(self) -> frozenset[str]:
        return frozenset()

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Yield the events. When a gateway fails, the next one continues behind the last event."""
        if site_of(piece.partition) != self.site:
            raise UserError(f"the flow no longer reads the site of {piece.partition}")
        place = Place(tuple(address.split(",")), self._proof(), self._choke())
        parts = self._stored(piece, place) if self.filtered is None else self._chunks(piece, place)
        try:
            yield from (events for events in parts if events.num_rows)
        except UnavailableError as error:
            why = plain(str(error), self.site, place.proof, utc_now())
            raise UnavailableError(why) from error

    def term_of(self, partition: str, seq: int, address: str) -> int:
        """Return the term in which the event was written. Raises as ``read``."""
        journal, proof = journal_of(partition), self._proof()
        owner = identity(journal)
        with fetching.client(address.partition(",")[0], proof) as client:
            frames = list(client.frames(journal, seq, seq + 1))
        for frame in frames:
            header = FrameHeader.unpack(frame, 0, owner)
            if header.first_seq <= seq < header.end:
                return header.term
        raise DataLossError(f"journal {journal}: seq {seq} is missing")

    def _stored(self, piece: Range, place: Place) -> Iterator[pa.RecordBatch]:
        journal, source = journal_of(piece.partition), source_of(piece.partition)
        frames = fetching.frames(place, journal, piece.start, piece.end)
        for batch in rows(frames, journal, piece.start, piece.end, replayed=piece.replayed):
            yield self._marked(batch, source, passed_sites(batch.column("attrs")))

    def _chunks(self, piece: Range, place: Place) -> Iterator[pa.RecordBatch]:
        """Yield the events behind the filters, over one connection."""
        journal, source = journal_of(piece.partition), source_of(piece.partition)
        gateways, seq, failures = place.gateways, piece.start, 0
        while seq < piece.end:
            began = seq
            try:
                with fetching.client(gateways[failures % len(gateways)], place.proof) as client:
                    for reached, batches in client.filtered(
                        journal, began, piece.end, self.filters, place.choke
                    ):
                        seq = reached
                        batch = self._with_identity(batches, piece)
                        passed = batch.column(filtered_wire.SITES)
                        known = passed if passed.null_count < len(passed) else None
                        yield self._marked(batch, source, known)
            except ThrottledError:  # after a wait at the gateway: no fault, and nowhere else faster
                continue
            except UnavailableError:
                failures = failures + 1 if seq == began else 1
                if failures >= len(gateways) and seq == began:
                    raise

    def _with_identity(self, batches: Sequence[pa.RecordBatch], piece: Range) -> pa.RecordBatch:
        """Return the events of a chunk as one batch. Raises UserError for other columns."""
        assert self.filtered is not None
        own = [field for field in self.filtered.schema if field.name not in filtered_wire.OWN]
        seq = READ_SCHEMA.field("seq").with_name(filtered_wire.SEQ)
        expected = pa.schema([*own, seq, pa.field(filtered_wire.SITES, pa.string())])
        try:
            whole = pa.Table.from_batches(batches, expected).combine_chunks().to_batches()
        except pa.ArrowInvalid as error:
            raise UserError(
                f"site {self.site} has other columns behind the filters {self.filters} than before"
            ) from error
        events = whole[0] if whole else pa.RecordBatch.from_pylist([], expected)
        events = events.append_column("seq", events.column(filtered_wire.SEQ))
        return events.append_column("replayed", pa.repeat(piece.replayed, events.num_rows))

    def _marked(
        self, batch: pa.RecordBatch, source: str, passed: pa.Array | None
    ) -> pa.RecordBatch:
        """Add the ``passed`` sites, None when no event has any; drop those that this one sent."""
        sites = pa.repeat(self.site, batch.num_rows)
        if passed is not None:
            sites = pc.binary_join_element_wise(passed, sites, ",", null_handling="skip")
        given = {"journal": pa.repeat(source, batch.num_rows), SITES: sites}
        names = self.schema.names
        columns = [given[name] if name in given else batch.column(name) for name in names]
        events = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if passed is None:
            return events
        returned = pc.fill_null(
            pc.match_substring(pc.binary_join_element_wise("", passed, "", ","), f",{self.here},"),
            fill_value=False,
        )
        looped = pc.sum(returned).as_py()
        if looped:
            reports.count({LOOPED: looped})
            _loops.warning(
                "journal %s: %d events have passed this site, and are dropped: the flows form a "
                "loop. More within a minute are not logged",
                *(source, looped),
            )
        return events.filter(pc.invert(returned))


def passed_sites(attrs: pa.MapArray) -> pa.Array | None:
    """Return the attribute ``sites`` of each event; None when no event has it."""
    start, end = attrs.offsets[0].as_py(), attrs.offsets[-1].as_py()
    keys = attrs.keys.slice(start, end - start)
    if not pc.any(pc.equal(keys, SITES)).as_py():
        return None
    return pc.map_lookup(attrs, SITES, "first")
