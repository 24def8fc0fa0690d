"""Rendezvous hashing (Thaler and Ravishankar): agree on one of several names without asking.

A name that comes or goes changes only what falls to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def chosen(key: str, names: Iterable[str]) -> str | None:
    """The name to which the key falls, or None."""
    return max(
        names,
        key=lambda name: hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest(),
        default=None,
    )
