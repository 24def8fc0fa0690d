"""Names seen in the tree, to tell what was deleted from what an import left out. Pure.

A name that is absent was deleted only if it was seen in a tree of the same generation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownNames:
    generation: int = 0
    names: frozenset[str] = frozenset()

    def after(
        self, generation: int, present: Collection[str], local: Collection[str]
    ) -> KnownNames:
        """After ``present`` were seen; only ``local`` names are kept."""
        before = self.names if generation == self.generation else frozenset()
        return KnownNames(generation, (before | frozenset(present)) & frozenset(local))

    def deleted(self, absent: Collection[str]) -> tuple[str, ...]:
        """The ``absent`` names that were deleted."""
        return tuple(sorted(self.names.intersection(absent)))
