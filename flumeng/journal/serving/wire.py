"""The wire format of journal servers: names, schemas, tickets, errors. Imports little."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import msgspec
import pyarrow as pa

from flumeng.events.journal_names import is_id
from flumeng.journal.log.errors import (
    AboveSafeError,
    BelowFloorError,
    DataLossError,
    DeniedError,
    NotServedError,
    TapDeniedError,
    TapsBusyError,
    ThrottledError,
)
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError

FRAMES_SCHEMA = pa.schema([pa.field("frame", pa.binary())])
POSITIONS = "positions"
ACCOUNTS = "accounts"
REPLICAS = "replicas"
COUNTERS = "counters"
OFFSETS = "offsets"
WATCH = "watch"
CHECK_TARGETS = "check-targets"
FLOW_POSITIONS = "flow-positions"
LEASE = "lease"
FLOW_FILTERS = "flow-filters"
MAX_TICKET_BYTES = 16_384
"""Large, since a token contains its signer's certificates."""
MOST_RATE = 2**40
# Names of errors on the wire; the first that fits.
ERROR_KINDS: tuple[tuple[str, type[FlumengError]], ...] = (
    ("tap-denied", TapDeniedError),
    ("taps-busy", TapsBusyError),
    ("denied", DeniedError),
    ("bad-request", UserError),
    ("throttled", ThrottledError),
    ("not-served", NotServedError),
    ("below-floor", BelowFloorError),
    ("above-safe", AboveSafeError),
    ("data-loss", DataLossError),
    ("corrupt", CorruptError),
    ("unavailable", UnavailableError),
)


def frames_of(batch: pa.RecordBatch, sender: str) -> Iterator[pa.Buffer]:
    """Yield the rows of a batch as buffers, without copying. Raises CorruptError, which names the
    ``sender``, for invalid bounds; these have no checksums."""
    if batch.schema != FRAMES_SCHEMA:
        raise CorruptError(f"{sender} sends other columns than frames: {batch.schema}")
    frames = batch.column(0)
    try:
        frames.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptError(f"{sender} sends frames without bounds: {error}") from error
    _, offsets, data = frames.buffers()
    if offsets is None or data is None:
        raise CorruptError(f"{sender} sends frames without bytes")
    bounds = memoryview(offsets).cast("i")[frames.offset : frames.offset + len(frames) + 1]
    for begin, end in itertools.pairwise(bounds):
        yield data.slice(begin, end - begin)


@dataclass(frozen=True)
class Choke:
    """The limits that a reader at another site sets itself, in bytes per second; 0: none. ``link``:
    of all flows of its ``site``. ``priority``: among these, the highest first. ``reader``: its
    flow. A certificate's site counts instead of ``site``."""

    site: str = ""
    reader: str = ""
    bytes_per_second: int = 0
    link_bytes_per_second: int = 0
    priority: int = 0


NO_CHOKE = Choke()


@dataclass(frozen=True)
class Ticket:
    """A request for the events [start, end) of a journal; a ``token`` admits an executor. Only
    gateways heed a ``choke``. With ``filters``, the events behind these filters of the flow, in
    chunks of ``filtered_wire``. An ``aligned`` one gets only frames that begin in the range; old
    servers add the one before."""

    journal: str
    start: int
    end: int
    tapped: bool = False
    token: str = ""
    choke: Choke = NO_CHOKE
    filters: str = ""
    aligned: bool = False


def make_ticket(
    journal: str,
    start: int,
    end: int,
    *,
    tapped: bool = False,
    token: str = "",
    choke: Choke = NO_CHOKE,
    filters: str = "",
    aligned: bool = False,
) -> bytes:
    """Encode a ticket; a server without taps rejects the ticket of a tap."""
    document: dict[str, object] = {"journal": journal, "start": start, "end": end}
    if token:
        document["token"] = token
    if choke != NO_CHOKE:
        document["choke"] = asdict(choke)
    if filters:
        document["filters"] = filters
    if aligned:
        document["aligned"] = True
    return json.dumps({"tap": document} if tapped else document).encode()


def parse_ticket(ticket: bytes) -> Ticket:
    if len(ticket) > MAX_TICKET_BYTES:
        raise UserError(f"a ticket has at most {MAX_TICKET_BYTES} bytes")
    try:
        document = json.loads(ticket)
        tapped = "tap" in document
        if tapped:
            document = document["tap"]
        name, start, end = document["journal"], document["start"], document["end"]
        token, filters = document.get("token", ""), document.get("filters", "")
        aligned = document.get("aligned", False)
        choke = msgspec.convert(document.get("choke", {}), Choke)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError('a ticket is like {"journal": "ID", "start": 0, "end": 9}') from error
    if not (isinstance(name, str) and is_id(name) and type(start) is int and type(end) is int):
        raise UserError("a ticket holds a journal's id and two whole numbers")
    if not 0 <= start <= end:
        raise UserError(f"a ticket's range is 0 <= start <= end, not {start} to {end}")
    if not isinstance(token, str) or not isinstance(filters, str):
        raise UserError("a ticket's token and filters must be strings")
    if not isinstance(aligned, bool):
        raise UserError("a ticket's aligned must be true or false")
    if not all(
        0 <= rate <= MOST_RATE for rate in (choke.bytes_per_second, choke.link_bytes_per_second)
    ):
        raise UserError(f"a ticket's rates are 0 to {MOST_RATE} bytes/s")
    return Ticket(name, start, end, tapped, token, choke, filters, aligned)
