"""Requests to the gateways of a site, and their answers. Ranges use the tickets of ``wire``."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from flumeng.journal.log.contract import Position
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.options.patterns import check_name

WAIT_SECONDS = 1.0
"""The longest time that an answer is held back while nothing changes."""

T = TypeVar("T")


class PositionsRequest(msgspec.Struct, frozen=True):
    """A request for the positions of a flow's journals. It is answered when they differ from those
    of the answer ``seen``, or after ``wait_seconds``. ``site``: the caller's name. ``source``: the
    name of the flow's site; another one refuses."""

    flow: str
    site: str = ""
    seen: str = ""
    wait_seconds: float = 0.0
    source: str = ""


class FlowPositions(msgspec.Struct, frozen=True):
    """The journals of a flow of ``site``. ``ends``: of the closed ones. ``away``: those whose
    server does not answer. ``seen`` names these contents."""

    site: str
    positions: dict[str, Position]
    ends: dict[str, int]
    away: tuple[str, ...]
    seen: str


class LeaseRequest(msgspec.Struct, frozen=True):
    """Acks of ``reader``, a flow of the caller's ``site``. The source keeps all above for
    ``keep_seconds`` after the last request. ``id``: from the last answer, "" without one. ``end``:
    the reader was deleted; its lease with this id ends. ``source``: see ``PositionsRequest``."""

    flow: str
    site: str
    reader: str
    keep_seconds: float
    acks: dict[str, int]
    id: str = ""
    end: bool = False
    source: str = ""


class LeaseAnswer(msgspec.Struct, frozen=True):
    """``ended``: the lease with the request's id was removed, so events may be missing."""

    site: str
    id: str
    ended: bool = False


def parse(kind: type[T], body: bytes) -> T:
    """Decode a request. Raises UserError."""
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
