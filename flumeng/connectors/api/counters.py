"""What happened at one source since its worker started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    """Numbers that only grow, but for the last two.

    ``events`` and ``bytes`` (as received, with framing) were taken. ``truncated`` events were cut.
    ``discarded_bytes`` were received and are in no event: the rest of over-long messages, what
    connections that broke or were closed left unfinished, and what could not be stored.
    What was ``malformed`` could not be told apart or read. Requests were ``undelivered`` whose
    events were journaled and not delivered in time. Connections were ``refused`` (there were
    too many; a request: later perhaps), closed when ``idle`` for too long, or closed as
    ``overfull``: all unfinished messages together took too much memory. Connections and requests
    were ``unauthorized`` whose senders are not let in. ``dropped`` datagrams found
    the kernel's buffer full. ``skipped`` files were not read, since they are compressed.
    ``cut`` files were cut short or written anew, and what was not read yet was in no copy.
    ``missed`` files, or copies, were gone or compressed before they were read to the end.
    ``unread_bytes`` are in followed files and not taken yet. ``lost_files`` are the ``cut`` and
    ``missed`` ones, until there was none for a day.
    """

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
    """What all of them counted together."""
    every = list(counters)
    return Counters(*(sum(getattr(one, f.name) for one in every) for f in fields(Counters)))
