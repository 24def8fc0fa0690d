"""Who holds the replicated journals that concern this node, as ZooKeeper has it.

The ingest workers run the protocol of copies; this reads for them, and asks for the changes that
they want, each as a compare-and-set at the version of the record that they know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flumeng.errors import ConflictError, CorruptError
from flumeng.node.protocol import Message
from flumeng.replication.membership import Membership
from flumeng.store import Put, Store, Unreadable, Version, Versioned
from zkschema import paths
from zkschema.records import Journal

Records = Mapping[str, Versioned[Journal]]


@dataclass(frozen=True)
class Found:
    """``message`` is for the workers. ``led``: journals that another node made and this one leads.
    ``forgotten``: those that this node made and another one ended, which nobody needs any more."""

    message: Message
    led: Collection[str] = ()
    forgotten: Records = field(default_factory=dict)


class Memberships:
    def __init__(self, store: Store, me: str) -> None:
        self._store, self._me = store, me

    def find(self, journals: Iterable[str], copies: Iterable[str]) -> Found:
        """Of these journals, and of those of which a copy lies here. Raises UnavailableError."""
        lying = set(copies)
        names = sorted({*journals, *lying})
        found = dict(zip(names, self._read(names), strict=True))
        replicated = {
            name: one
            for name, one in found.items()
            if isinstance(one, Versioned) and one.value.lineage
        }
        told: dict[str, Any] = {}
        for name, one in replicated.items():
            try:
                membership = Membership.of(one.value)
            except CorruptError:
                continue  # it is told where records are checked, and the workers go on as before
            told[name] = {"version": one.version.number, **saying(membership)}
        ended = {
            name: {"end": one.value.end, "gone": one.value.gone}
            for name, one in replicated.items()
            if self._made(one.value) and one.value.closed and one.value.end is not None
        }
        nodes = {node for said in told.values() for node in said["nodes"]}
        message = {
            "type": "replicas",
            "journals": told,
            "addresses": self._addresses(nodes - {self._me}),
            "ended": ended,
            "unwanted": sorted(name for name in lying if not self._wanted(found[name])),
        }
        forgotten = {
            name: one
            for name, one in replicated.items()
            if self._made(one.value) and one.value.gone
        }
        led = [
            name
            for name, one in replicated.items()
            if one.value.primary == self._me != one.value.node and not one.value.gone
        ]
        return Found(message, led, forgotten)

    def change(self, wish: Message) -> None:
        """Ask for what a worker wants. Raises ConflictError when the record is another by now,
        UnavailableError when nobody knows what became of it."""
        path = paths.journal(str(wish["journal"]))
        (found,) = self._store.read_each([path])
        if not isinstance(found, Versioned) or found.version != Version(int(wish["version"])):
            raise ConflictError(f"{path} is another than the one that was to be changed")
        changed = membership_of(wish).put_into(found.value)
        self._store.commit([Put(path, changed, found.version)])

    def _made(self, journal: Journal) -> bool:
        """Whether it began here, and another node has it now."""
        return journal.node == self._me != journal.primary

    def _wanted(self, found: Versioned[Journal] | Unreadable | None) -> bool:
        """Of one that cannot be read nothing is removed."""
        if isinstance(found, Unreadable):
            return True
        return found is not None and not found.value.gone and self._me in found.value.copies

    def _read(self, names: list[str]) -> list[Versioned[Journal] | Unreadable | None]:
        found = self._store.read_each([paths.journal(name) for name in names])
        return list(found)

    def _addresses(self, nodes: set[str]) -> dict[str, str]:
        """Copies are with the first worker of a node."""
        names = sorted(nodes)
        found = self._store.read_each([paths.live_node(name) for name in names])
        return {
            name: live.value.addresses[0]
            for name, live in zip(names, found, strict=True)
            if isinstance(live, Versioned) and live.value.addresses
        }


def membership_of(said: Mapping[str, Any]) -> Membership:
    """What a message says. Raises KeyError, TypeError."""
    return Membership(
        said["lineage"],
        said["term"],
        said["primary"],
        tuple(said["in_sync"]),
        tuple(said["nodes"]),
    )


def saying(membership: Membership) -> Message:
    """The reverse."""
    return {
        "lineage": membership.lineage,
        "term": membership.term,
        "primary": membership.primary,
        "in_sync": list(membership.in_sync),
        "nodes": list(membership.nodes),
    }
