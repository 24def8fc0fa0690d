"""Tells hosts from other words at the place of the host in RFC 3164, for many rows at once.

Relays without a host and daemons write sentences there: ``last message repeated 3 times``, ``---``,
``Message forwarded from aix1: ``; devices write pairs and lists of values.
"""

from __future__ import annotations

import numpy as np

from flumeng.events.byte_column import ByteColumn, Mask, Positions, following

FORWARDED = (b"Message forwarded from ", b"Forwarded from ", b"From ")
"""AIX and Solaris write these before the host and its colon."""
_REPEATED = (b"last message ", b"Last message ", b"message repeated ", b"Message repeated ")
_FIRST = np.zeros(256, np.bool_)
_FIRST[0x80:] = True
_FIRST[np.frombuffer(b":(/_", np.uint8)] = True
for _span in (b"09", b"AZ", b"az"):
    _FIRST[_span[0] : _span[1] + 1] = True
_SENTENCE = np.zeros(256, np.bool_)
_SENTENCE[[word[0] for word in (*FORWARDED, *_REPEATED)]] = True


def skip_forwarded(flat: ByteColumn, places: Positions, ends: Positions) -> tuple[Positions, Mask]:
    """Where the host begins behind ``Message forwarded from `` and the like, and where that
    stands. The host's colon ends its word."""
    rows = np.flatnonzero(_SENTENCE[flat.at(places, ends)])
    behind = places.copy()
    found = np.zeros(len(places), np.bool_)
    for text in FORWARDED if len(rows) else ():
        said = _stands(flat, text, places[rows], ends[rows])
        behind[rows[said]] += len(text)
        found[rows[said]] = True
    return behind, found


def are_hosts(
    flat: ByteColumn, starts: Positions, word_ends: Positions, ends: Positions, plain: Positions
) -> Mask:
    """Which of the words may be hosts. One with ``=`` or ``,`` may not, but in parentheses, as
    access points of UniFi write it; before ``plain`` neither stands."""
    first = flat.at(starts, ends)
    found: Mask = _FIRST[first]
    rows = np.flatnonzero((word_ends > plain) & (first != ord("(")))
    if len(rows):
        pairs = flat.find("=", ",")
        found[rows] &= following(pairs, starts[rows], ends[rows]) >= word_ends[rows]
    rows = np.flatnonzero(_SENTENCE[first])
    for text in _REPEATED if len(rows) else ():
        found[rows] &= ~_stands(flat, text, starts[rows], ends[rows])
    return found


def _stands(flat: ByteColumn, text: bytes, places: Positions, ends: Positions) -> Mask:
    window = flat.window(places, len(text), ends)
    found: Mask = (window == np.frombuffer(text, np.uint8)[:, None]).all(axis=0)
    return found
