"""Rendezvous hashing (Thaler and Ravishankar). A name that comes or goes moves only its keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def chosen(key: str, names: Iterable[str]) -> str | None:
    """Return the name with the highest hash for the key; None when there are no names."""
    return max(
        names,
        key=lambda name: hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest(),
        default=None,
    )
