"""An object as a listing found it."""

from __future__ import annotations

from typing import NamedTuple

from flumeng.platform.options.patterns import split_query


class Listed(NamedTuple):
    """``location`` opens it; ``modified_us`` are microseconds since the epoch by the store's clock.

    ``tag`` is what its store calls this content of it; empty where the store has none.
    """

    location: str
    size: int
    modified_us: int
    tag: str = ""

    @property
    def place(self) -> str:
        """The location without how its store is reached, which may change while the object stays
        the same. Places of one path are in the order in which they are listed."""
        return split_query(self.location)[0]
