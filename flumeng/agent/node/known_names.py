"""Which names a node knows to have been in the tree, so that the absence of one says something.

What is absent was deleted only when the node has seen it in the same tree before. An import brings
back a tree of another time, under a higher generation, and that tree may lack what nobody deleted:
what the node keeps of that it goes on keeping. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownNames:
    """``names`` of one kind were there in the tree of this ``generation``."""

    generation: int = 0
    names: frozenset[str] = frozenset()

    def after(
        self, generation: int, present: Collection[str], local: Collection[str]
    ) -> KnownNames:
        """After ``present`` were seen; only names of which something is ``local`` matter."""
        before = self.names if generation == self.generation else frozenset()
        return KnownNames(generation, (before | frozenset(present)) & frozenset(local))

    def deleted(self, absent: Collection[str]) -> tuple[str, ...]:
        """Those of the ``absent`` names that were deleted; the others are not known."""
        return tuple(sorted(self.names.intersection(absent)))
