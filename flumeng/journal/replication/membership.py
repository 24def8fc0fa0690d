"""The members of a replicated journal as in ZooKeeper; each change is a compare-and-set. A
replica's id is ``NODE/ID`` with a random ID, so a replica made after a disk loss cannot pass for
the old one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flumeng.platform.errors import ConflictError, CorruptError, UserError
from zkschema.records import Journal


@dataclass(frozen=True, slots=True)
class Membership:
    """``in_sync``: the replicas with every acknowledged event, the primary's among them. ``nodes``:
    those that should hold one. ``lineage``: one history of the journal's events; another one begins
    where an operator accepted a loss."""

    lineage: str
    term: int
    primary: str
    in_sync: tuple[str, ...]
    nodes: tuple[str, ...]

    @classmethod
    def of(cls, journal: Journal) -> Membership:
        """Raises CorruptError for a record whose primary is not in sync."""
        for replica in journal.in_sync:
            if node_of(replica) == journal.primary:
                return cls(
                    journal.lineage, journal.term, replica, journal.in_sync, journal.replicas
                )
        raise CorruptError(f"the primary {journal.primary} is not in sync")

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
        """The message for the pipe between a node and its ingest workers."""
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

    def restarted(self) -> Membership:
        """Starts a new term: each process of the primary has its own (I4)."""
        return replace(self, term=self.term + 1)

    def promoted(self, replica: str) -> Membership:
        """Makes the replica primary in a new term and removes the former one from the in-sync set
        (I4, I10). Raises ConflictError for a replica that is not in sync."""
        if replica not in self.in_sync:
            raise ConflictError(f"{replica} is not in sync: answered events may be missing there")
        in_sync = tuple(
            member for member in self.in_sync if member != self.primary or member == replica
        )
        return replace(self._led_by(replica), in_sync=in_sync)

    def promoted_unclean(self, replica: str, lineage: str) -> Membership:
        """Promotes by an operator's order, without an in-sync replica: events are lost (I10)."""
        return replace(self._led_by(replica), lineage=lineage, in_sync=(replica,))

    def _led_by(self, replica: str) -> Membership:
        nodes = (*self.nodes, *(() if node_of(replica) in self.nodes else (node_of(replica),)))
        return replace(self, term=self.term + 1, primary=replica, nodes=nodes)

    def without(self, replica: str) -> Membership:
        """Removes a replica from the in-sync set. Raises UserError for the primary."""
        if replica == self.primary:
            raise UserError(f"{replica} is the primary: promote another replica first")
        return replace(self, in_sync=tuple(member for member in self.in_sync if member != replica))

    def joined(self, replica: str) -> Membership:
        """Adds a replica that has caught up, in place of an earlier one on its node."""
        others = tuple(member for member in self.in_sync if node_of(member) != node_of(replica))
        return replace(self, in_sync=(*others, replica))


def node_of(replica: str) -> str:
    return replica.partition("/")[0]
