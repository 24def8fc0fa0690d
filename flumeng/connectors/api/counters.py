"""Counters of one source since its worker started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    """Counters that only grow, but for the last two. ``bytes`` are as received, with framing.
    ``truncated`` events were too long. ``discarded_bytes`` were received but are in no event: ends
    of over-long or unfinished messages, and unstorable data. ``malformed`` data could not be framed
    or read. ``undelivered`` requests had events that were not delivered in time. Connections were
    ``refused`` (too many), ``unauthorized``, or closed as ``idle`` or ``overfull`` (unfinished
    messages took too much memory). ``dropped`` datagrams found the kernel's buffer full.
    ``skipped`` files are compressed. Not read to the end: ``cut`` files were truncated, ``missed``
    ones deleted or compressed; ``lost_files`` counts both until none was lost for a day.
    ``unread_bytes`` are in followed files."""

    events: int = 0
    bytes: int = 0
    truncated: int = 0
    discarded_bytes: int = 0
    malformed: int = 0
    refused: int = 0
    unauthorized: int = 0
    undelivered: int = 0
    idle: int = 0
    overfull: int = 0
    dropped: int = 0
    skipped: int = 0
    cut: int = 0
    missed: int = 0
    unread_bytes: int = 0
    lost_files: int = 0


def total(counters: Iterable[Counters]) -> Counters:
    every = list(counters)
    return Counters(*(sum(getattr(counter, f.name) for counter in every) for f in fields(Counters)))
