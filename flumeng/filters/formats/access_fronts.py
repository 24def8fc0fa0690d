"""Words in front of the lines of an access log: a virtual host, a syslog header.

A line begins with client, ident and user. Apache's ``vhost_combined`` has ``VHOST:PORT`` before
them, and syslog has its header. A word more moves all columns, so a line is refused where it is not
clear which word the client is.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import Mask, Positions

_ADDRESS = r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)"
_WORD = r"(?:[^\s\[-]\S*|-\S+)"
"""Any but ``-``, which is no part of a name of several words."""
_USER = rf"(?:\S+| *{_WORD}(?: +{_WORD})* *)"
_PORT = r"(?P<port>(?:[^\s:\[]+|\[[0-9A-Fa-f:.]+\]):[0-9]+ )"
_NAME = r"(?P<name>[\w.-]*[A-Za-z][\w.-]* )"
_TAG = r"(?P<tag>(?:[^\[\"]* )?[\w./-]+(?:\[[0-9]+\])?: +)"
_HEADER = r"(?P<header><[0-9]{1,3}>[0-9]+ (?:\S+ ){5}- )"
_FRONT = (
    rf"^(?:{_PORT}(?:{_ADDRESS} \S+|{_WORD} -)|{_NAME}{_ADDRESS} \S+|{_TAG}{_WORD} \S+"
    rf"|{_HEADER}{_WORD} \S+) {_USER} \["
)
_PLAIN = rf"^(?:\S* - {_USER}|{_ADDRESS}\S* \S+ {_USER}|\S* \S+ \S+) \["
_SECOND_ADDRESS = rf"^\S* {_ADDRESS} "


def found(bodies: pa.Array, among: Mask) -> tuple[Positions, Mask]:
    """How many bytes stand in front of the client, and where that is not clear. Only rows of
    ``among`` are read."""
    chosen = np.flatnonzero(among)
    lines = bodies.take(pa.array(chosen))
    groups = pc.extract_regex(lines, _FRONT).flatten()
    longest = [pc.fill_null(pc.binary_length(group), 0).to_numpy(False) for group in groups]
    counts = np.max(longest, axis=0)
    plain = pc.match_substring_regex(lines, _PLAIN).to_numpy(False)
    second = pc.match_substring_regex(lines, _SECOND_ADDRESS).to_numpy(False)
    fronts, unclear = np.zeros(len(among), np.int64), np.zeros(len(among), np.bool_)
    fronts[chosen] = counts
    unclear[chosen] = (counts == 0) & (second | ~plain)
    return fronts, unclear
