"""Who holds a journal, as ZooKeeper has it: each change is a compare-and-set of this.

A copy's id is ``NODE/ID``, where the ID was drawn when the copy was made: one whose disk was lost
is another copy, and cannot pass for the one that was in sync.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flumeng.platform.errors import ConflictError, CorruptError, UserError
from zkschema.records import Journal


@dataclass(frozen=True, slots=True)
class Membership:
    """``in_sync``: the copies that have every answered event, the primary's among them. ``nodes``:
    those that are to hold one. ``lineage``: one history of the journal's events; another one begins
    where an operator gave some up."""

    lineage: str
    term: int
    primary: str
    in_sync: tuple[str, ...]
    nodes: tuple[str, ...]

    @classmethod
    def of(cls, journal: Journal) -> Membership:
        """From the record of a replicated journal. Raises CorruptError when its primary is not in
        sync."""
        for copy in journal.in_sync:
            if node_of(copy) == journal.primary:
                return cls(journal.lineage, journal.term, copy, journal.in_sync, journal.copies)
        raise CorruptError(f"the primary {journal.primary} is not among those in sync")

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Membership:
        """Raises KeyError, TypeError."""
        return cls(
            message["lineage"],
            message["term"],
            message["primary"],
            tuple(message["in_sync"]),
            tuple(message["nodes"]),
        )

    def as_message(self) -> dict[str, Any]:
        """For the pipe between a node and its ingest workers."""
        return {
            "lineage": self.lineage,
            "term": self.term,
            "primary": self.primary,
            "in_sync": list(self.in_sync),
            "nodes": list(self.nodes),
        }

    def put_into(self, journal: Journal) -> Journal:
        return replace(
            journal,
            lineage=self.lineage,
            term=self.term,
            primary=node_of(self.primary),
            in_sync=self.in_sync,
            copies=self.nodes,
        )

    def restarted(self) -> Membership:
        """Each process of the primary has a term of its own (I4)."""
        return replace(self, term=self.term + 1)

    def promoted(self, copy: str) -> Membership:
        """The copy is the primary in a new term, the one before is no longer in sync (I4, I10).
        Raises ConflictError for a copy that is not in sync."""
        if copy not in self.in_sync:
            raise ConflictError(f"{copy} is not in sync: answered events may be missing there")
        in_sync = tuple(known for known in self.in_sync if known != self.primary or known == copy)
        return replace(self._led_by(copy), in_sync=in_sync)

    def promoted_unclean(self, copy: str, lineage: str) -> Membership:
        """By an operator's order, without a copy in sync: its events are lost (I10)."""
        return replace(self._led_by(copy), lineage=lineage, in_sync=(copy,))

    def _led_by(self, copy: str) -> Membership:
        nodes = (*self.nodes, *(() if node_of(copy) in self.nodes else (node_of(copy),)))
        return replace(self, term=self.term + 1, primary=copy, nodes=nodes)

    def without(self, copy: str) -> Membership:
        """Raises UserError for the primary."""
        if copy == self.primary:
            raise UserError(f"{copy} is the primary: promote another copy first")
        return replace(self, in_sync=tuple(known for known in self.in_sync if known != copy))

    def joined(self, copy: str) -> Membership:
        """The copy has caught up; an earlier one on its node is gone."""
        others = tuple(known for known in self.in_sync if node_of(known) != node_of(copy))
        return replace(self, in_sync=(*others, copy))


def node_of(copy: str) -> str:
    return copy.partition("/")[0]
