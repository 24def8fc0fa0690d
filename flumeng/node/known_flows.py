"""Which flows a node knows to have been there, so that the absence of one says something.

A flow that is absent was deleted only when the node has seen it in the same tree before. An import
brings back a tree of another time, under a higher generation, and that tree may lack flows that
nobody deleted: what the node keeps for those it goes on keeping. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownFlows:
    """``flows`` were there in the tree of this ``generation``."""

    generation: int = 0
    flows: frozenset[str] = frozenset()

    def after(
        self, generation: int, present: Collection[str], local: Collection[str]
    ) -> KnownFlows:
        """After ``present`` were seen; only flows of which something is ``local`` matter."""
        before = self.flows if generation == self.generation else frozenset()
        return KnownFlows(generation, (before | frozenset(present)) & frozenset(local))

    def deleted(self, absent: Collection[str]) -> tuple[str, ...]:
        """Those of the ``absent`` flows that were deleted; the others are not known."""
        return tuple(sorted(self.flows.intersection(absent)))
