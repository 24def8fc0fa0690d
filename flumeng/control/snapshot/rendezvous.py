"""Rendezvous hashing (Thaler and Ravishankar): who of several does something, without asking them.

Everyone who sees the same names comes to the same one. A name that comes or goes changes only what
falls to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def chosen(key: str, names: Iterable[str]) -> str | None:
    """The one of the names to which the key falls; None when there are none."""
    return max(
        names,
        key=lambda name: hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest(),
        default=None,
    )
