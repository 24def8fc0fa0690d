"""Requests to the gateways of a site, and their answers. Ranges use the tickets of ``wire``."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from flumeng.config.column_kinds import Kind
from flumeng.journal.log.contract import Position
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.options.patterns import check_name

WAIT_SECONDS = 1.0
"""The longest time that an answer is held back while nothing changes."""

MOST_BYTES = 32 << 20
"""The largest request: acks of 500,000 journals."""

T = TypeVar("T")


class PositionsRequest(msgspec.Struct, frozen=True):
    """A request for the positions of a flow's journals. It is answered when they differ from those
    of the answer ``seen``, or after ``wait_seconds``. ``site``: the caller's name. ``filtered``:
    the caller reads the events behind the flow's filters. ``source``: the name of the flow's site;
    another one refuses."""

    flow: str
    site: str = ""
    seen: str = ""
    wait_seconds: float = 0.0
    filtered: bool = False
    source: str = ""


class FlowPositions(msgspec.Struct, frozen=True):
    """The journals of a flow of ``site``. ``ends``: of the closed ones. ``away``: those whose
    server does not answer. ``seen`` names these contents. ``filters``: the name of the flow's
    current filters, for a ``filtered`` request. ``broken``: why the leases of the caller's flows
    broke, by flow."""

    site: str
    positions: dict[str, Position]
    ends: dict[str, int]
    away: tuple[str, ...]
    seen: str
    filters: str = ""
    broken: dict[str, str] = {}


class LeaseRequest(msgspec.Struct, frozen=True):
    """Acks of ``reader``, a flow of the caller's ``site``. The source keeps all above for
    ``keep_seconds`` after the last request. ``id``: from the last answer, "" without one. ``end``:
    the reader was deleted; its lease with this id ends. ``source``: see ``PositionsRequest``.
    ``made``: differs for each flow of the reader's name; "" from an older site. ``failover``: when
    the caller's site has paused the reader and taken over, in epoch seconds there; else 0."""

    flow: str
    site: str
    reader: str
    keep_seconds: float
    acks: dict[str, int]
    id: str = ""
    end: bool = False
    source: str = ""
    made: str = ""
    failover: float = 0.0


class Broken(msgspec.Struct, frozen=True):
    """Events that the source gave up before their reader had read them, and why. ``gaps``: journal,
    first seq and the seq behind the last; ``events`` counts those of all gaps. ``at_least``: some
    are not counted."""

    id: str
    why: str
    seconds_ago: float
    events: int
    gaps: tuple[tuple[str, int, int], ...] = ()
    at_least: bool = False


class LeaseAnswer(msgspec.Struct, frozen=True):
    """``ended``: the lease with the request's id was removed, so events may be missing. ``time``:
    of the gateway's clock, in seconds since the epoch; 0.0 from an older one. ``room``: the largest
    share of a journal's room that the kept ``events`` take. ``broke``: events given up, until an
    operator there acknowledges it."""

    site: str
    id: str
    ended: bool = False
    time: float = 0.0
    room: float = 0.0
    events: int = 0
    bytes: int = 0
    broke: Broken | None = None


class FiltersRequest(msgspec.Struct, frozen=True):
    """A request for what the filters of a flow make of its events. ``filters``: the name of those
    filters; "" for the current ones."""

    flow: str
    filters: str = ""


class FiltersAnswer(msgspec.Struct, frozen=True):
    """Filters of a flow of ``site``. ``filters``: their name, which depends on their text alone.
    ``columns``: of the events behind them. ``schema``: the same in Arrow's IPC format."""

    site: str
    filters: str
    columns: dict[str, Kind]
    schema: bytes


def parse(kind: type[T], body: bytes) -> T:
    """Decode a request. Raises UserError."""
    if len(body) > MOST_BYTES:
        raise UserError(f"a request has at most {MOST_BYTES} bytes")
    try:
        request = msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"the request is no {kind.__name__}: {error}") from error
    try:
        for name in ("flow", "reader", "site"):
            check_name(getattr(request, name, "x") or "x")
    except ValueError as error:
        raise UserError(f"the request's {name}: {error}") from error
    return request


def understood(kind: type[T], answer: object) -> T:
    """Convert the JSON of an answer, without unknown fields. Raises CorruptError."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise CorruptError(
            f"a gateway of another version answers with other fields than this flumeng reads "
            f"({error}): upgrade the older site"
        ) from error
