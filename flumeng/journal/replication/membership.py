"""The members of a replicated journal as in ZooKeeper; each change is a compare-and-set. A
replica's id is ``NODE/ID`` with a random ID, so a replica made after the loss of a disk is not
mistaken for the old one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flumeng.platform.errors import ConflictError, CorruptError, UserError
from zkschema.records import Journal


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of one journal. ``in_sync``: replicas with every acknowledged event, including
    the primary's. ``nodes``: nodes that should hold a replica. ``lineage``: the id of a history of
    events; an accepted loss begins another one."""

    lineage: str
    term: int
    primary: str
    in_sync: tuple[str, ...]
    nodes: tuple[str, ...]

    @classmethod
    def of(cls, journal: Journal) -> Membership:
        """Return a journal's membership. Raises CorruptError when the primary is not in sync."""
        for replica in journal.in_sync:
            if node_of(replica) == journal.primary:
                return cls(
                    journal.lineage, journal.term, replica, journal.in_sync, journal.replicas
                )
        raise CorruptError(f"the primary {journal.primary} of a journal is not in sync")

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Membership:
        return cls(
            message["lineage"],
            message["term"],
            message["primary"],
            tuple(message["in_sync"]),
            tuple(message["nodes"]),
        )

    def as_message(self) -> dict[str, Any]:
        """Return a message for the pipe between a node and its ingest workers."""
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
            replicas=self.nodes,
        )

    def restarted(self, least_term: int = 0) -> Membership:
        """Return the membership in a new term: each process of a primary needs one (I4)."""
        return replace(self, term=max(self.term + 1, least_term))

    def promoted(self, replica: str) -> Membership:
        """Return the membership with the replica as primary in a new term, and the former primary
        out of sync (I4, I10). Raises ConflictError for a replica that is not in sync."""
        if replica not in self.in_sync:
            raise ConflictError(f"replica {replica} is not in sync: accepted events may be missing")
        in_sync = tuple(
            member for member in self.in_sync if member != self.primary or member == replica
        )
        return replace(self._led_by(replica), in_sync=in_sync)

    def promoted_unclean(self, replica: str, lineage: str) -> Membership:
        """Promote a replica, then alone in sync, into another lineage: events may be lost (I10)."""
        return replace(self._led_by(replica), lineage=lineage, in_sync=(replica,))

    def _led_by(self, replica: str) -> Membership:
        nodes = (*self.nodes, *(() if node_of(replica) in self.nodes else (node_of(replica),)))
        return replace(self, term=self.term + 1, primary=replica, nodes=nodes)

    def without(self, replica: str) -> Membership:
        """Return the membership with the replica out of sync. Raises UserError for the primary."""
        if replica == self.primary:
            raise UserError(f"replica {replica} is the primary: promote another one first")
        return replace(self, in_sync=tuple(member for member in self.in_sync if member != replica))

    def joined(self, replica: str) -> Membership:
        """Return the membership with a caught-up replica in sync, replacing one on its node."""
        others = tuple(member for member in self.in_sync if node_of(member) != node_of(replica))
        return replace(self, in_sync=(*others, replica))


def node_of(replica: str) -> str:
    return replica.partition("/")[0]
