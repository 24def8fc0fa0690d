"""The wire format of journal servers: names, schemas, tickets, errors. Imports little."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

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
MAX_TICKET_BYTES = 16_384
"""Large, since a token contains its signer's certificates."""
# Names of errors on the wire; the first that fits.
ERROR_KINDS: tuple[tuple[str, type[FlumengError]], ...] = (
    ("tap-denied", TapDeniedError),
    ("taps-busy", TapsBusyError),
    ("denied", DeniedError),
    ("bad-request", UserError),
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
class Ticket:
    """A request for the events [start, end) of a journal; a ``token`` admits an executor. An
    ``aligned`` one gets only frames that begin in the range; old servers add the one before."""

    journal: str
    start: int
    end: int
    tapped: bool = False
    token: str = ""
    aligned: bool = False


def make_ticket(
    journal: str,
    start: int,
    end: int,
    *,
    tapped: bool = False,
    token: str = "",
    aligned: bool = False,
) -> bytes:
    """Encode a ticket; a server without taps rejects the ticket of a tap."""
    document: dict[str, object] = {"journal": journal, "start": start, "end": end}
    if token:
        document["token"] = token
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
        token, aligned = document.get("token", ""), document.get("aligned", False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError('a ticket is like {"journal": "ID", "start": 0, "end": 9}') from error
    if not (isinstance(name, str) and is_id(name) and type(start) is int and type(end) is int):
        raise UserError("a ticket holds a journal's id and two whole numbers")
    if not 0 <= start <= end:
        raise UserError(f"a ticket's range is 0 <= start <= end, not {start} to {end}")
    if not isinstance(token, str):
        raise UserError("a ticket's token must be a string")
    if not isinstance(aligned, bool):
        raise UserError("a ticket's aligned must be true or false")
    return Ticket(name, start, end, tapped, token, aligned)
