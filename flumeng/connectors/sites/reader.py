"""Reads ranges of journals of another site through its gateways, and cuts loops."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.api.ranged import Range, Split
from flumeng.connectors.sites import fetching
from flumeng.connectors.sites.fetching import Place
from flumeng.connectors.sites.names import journal_of, site_of, source_of
from flumeng.events.schema import READ_SCHEMA
from flumeng.journal.log.reading import rows
from flumeng.journal.serving.proof import Proof
from flumeng.platform.errors import UserError
from flumeng.platform.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from flumeng.connectors.sites.gateways import Gateways

log = logging.getLogger(__name__)

SITES = "sites"
"""The column with the sites that an event has passed, and the attribute from which it goes on."""
SCHEMA = pa.schema([*READ_SCHEMA, pa.field(SITES, pa.string())])

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
        place = Place(tuple(address.split(",")), self._proof())
        frames = fetching.frames(place, journal, piece.start, piece.end)
        for batch in rows(frames, journal, piece.start, piece.end, replayed=piece.replayed):
            events = self._marked(batch, source)
            if events.num_rows:
                yield events

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
