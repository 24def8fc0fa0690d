"""Who holds the replicated journals that concern this node, as ZooKeeper has it.

The ingest workers run the protocol of copies; this reads for them, and asks for the changes that
they want, each as a compare-and-set at the version of the record that they know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from flumeng.agent.node.pace import Pace
from flumeng.agent.node.protocol import Message
from flumeng.control.zookeeper import Put, Store, Unreadable, Version, Versioned
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.platform.errors import ConflictError, CorruptError
from zkschema import paths
from zkschema.records import NOTHING, Journal

Records = Mapping[str, Versioned[Journal]]

RECORD_SECONDS = 60.0
"""A record of which the assignment says nothing new is read again after this time at most."""
ABANDONED_SECONDS = 600.0
"""A record that this node may not read, and of which its assignment says nothing for so long, is of
a journal that is to have no copy here."""


@dataclass(frozen=True)
class Found:
    """``message`` is for the workers. ``led``: journals that another node made and this one leads.
    ``lost``: those that this node leads, with a copy that it does not have. ``forgotten``: those
    that this node made and another one ended, which nobody needs any more. ``absent``: those of
    which a copy lies here, and that have no record."""

    message: Message
    absent: Collection[str] = ()
    led: Collection[str] = ()
    lost: Records = field(default_factory=dict)
    forgotten: Records = field(default_factory=dict)


class Memberships:
    """``problems``: the path of a record, and why nobody can lead that journal.

    ``_live``: node -> the address of its first worker, empty when it has none; known until the
    watch on its live znode reports a change in ``_changed``.
    """

    def __init__(self, store: Store, me: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._me = store, me
        self._pace = Pace(clock, RECORD_SECONDS)
        self._live: dict[str, str] = {}
        self._watched: set[str] = set()
        self._changed: SimpleQueue[str] = SimpleQueue()
        self._known: dict[str, Versioned[Journal] | Unreadable | None] = {}
        self._clock = clock
        self._hidden_since: dict[str, float] = {}
        self.problems: dict[str, str] = {}

    def find(
        self,
        journals: Iterable[str],
        copies: Iterable[str],
        ids: Mapping[str, str],
        assigned: Mapping[str, int] = NOTHING,
    ) -> Found:
        """Of these journals, and of those of which a copy lies here. ``ids`` are those of the
        copies here that can be used. A record is read when ``assigned`` says another version of it
        than is known, soon after it has changed, and else ever more seldom. Raises
        UnavailableError."""
        stored = set(copies)
        found = self._look_at(sorted({*journals, *stored}), assigned)
        abandoned = self._abandoned(found, assigned)
        replicated = {
            name: one
            for name, one in found.items()
            if isinstance(one, Versioned) and one.value.lineage
        }
        self.problems.clear()
        told: dict[str, Any] = {}
        for name, one in replicated.items():
            try:
                membership = Membership.of(one.value)
            except CorruptError:
                continue  # it is told where records are checked, and the workers go on as before
            which = {"version": one.version.number, "created": one.created}
            told[name] = {**which, **membership.as_message()}
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
            "unwanted": sorted(
                name for name in stored if name in abandoned or self._unwanted(found[name])
            ),
        }
        absent = sorted(name for name in stored if found[name] is None)
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
        lost = {
            name: replicated[name]
            for name, said in told.items()
            if node_of(said["primary"]) == self._me
            and ids.get(name) != said["primary"]
            and not replicated[name].value.gone
        }
        return Found(message, absent, led, lost, forgotten)

    def hand_over(self, name: str, found: Versioned[Journal], own: str) -> bool:
        """Of a journal that this node leads, and whose copy it lost, or cannot use: make another
        copy that is in sync the primary; whether there is one. ``own`` is the id of the copy that
        it has instead, if any: an operator may have chosen this node, whatever its copy is called.
        Raises ConflictError, UnavailableError."""
        path, membership = paths.journal(name), Membership.of(found.value)
        self._pace.soon([name])
        if membership.primary == f"{self._me}/" and own:
            after = replace(membership, primary=own, in_sync=(own,))
        else:
            nodes = {node_of(copy): copy for copy in membership.in_sync}
            live = self._addresses(set(nodes) - {self._me})
            if not live:
                self.problems[str(path)] = (
                    f"the copy of journal {name} here is damaged or lost, and no other one in sync "
                    "is live: start their nodes, or give events up with `flumeng journal promote "
                    f"{name} --to NODE --unclean`"
                )
                return False
            after = membership.promoted(nodes[min(live)])
        self._store.commit([Put(path, after.put_into(found.value), found.version)])
        return True

    def change(self, proposal: Message) -> None:
        """Ask for what a worker wants. Raises ConflictError when the record is another by now,
        UnavailableError when nobody knows what became of it."""
        path = paths.journal(str(proposal["journal"]))
        self._pace.soon([path.name])
        (found,) = self._store.read_each([path])
        if not isinstance(found, Versioned) or found.version != Version(int(proposal["version"])):
            raise ConflictError(f"{path} is another than the one that was to be changed")
        changed = Membership.from_message(proposal).put_into(found.value)
        self._store.commit([Put(path, changed, found.version)])

    def _made(self, journal: Journal) -> bool:
        """Whether it began here, and another node has it now."""
        return journal.node == self._me != journal.primary

    def _abandoned(
        self,
        found: Mapping[str, Versioned[Journal] | Unreadable | None],
        assigned: Mapping[str, int],
    ) -> set[str]:
        """In a secured cluster who holds no copy any more may not read that."""
        now = self._clock()
        self._hidden_since = {
            name: self._hidden_since.get(name, now)
            for name, one in found.items()
            if isinstance(one, Unreadable) and one.hidden and name not in assigned
        }
        return {n for n, since in self._hidden_since.items() if now - since >= ABANDONED_SECONDS}

    def _unwanted(self, found: Versioned[Journal] | Unreadable | None) -> bool:
        """Whether its record says that no copy is to be here."""
        if not isinstance(found, Versioned):
            return False
        return found.value.gone or self._me not in found.value.copies

    def _look_at(
        self, names: list[str], assigned: Mapping[str, int]
    ) -> dict[str, Versioned[Journal] | Unreadable | None]:
        known = {name: self._known.get(name) for name in names}
        versions = {n: one.version.number for n, one in known.items() if isinstance(one, Versioned)}
        self._pace.soon(
            name
            for name in names
            if name not in versions or assigned.get(name, versions[name]) != versions[name]
        )
        due = self._pace.due(names)
        read = self._store.read_each([paths.journal(name) for name in due])
        for name, one in zip(due, read, strict=True):
            self._pace.saw(name, one.version if isinstance(one, Versioned) else None)
            known[name] = one
        self._known = known
        return known

    def _addresses(self, nodes: set[str]) -> dict[str, str]:
        """Copies are with the first worker of a node. A quiet look reads nothing: each node is
        watched from when it is first asked for."""
        for name in sorted(nodes - self._watched):
            self._store.watch(paths.live_node(name), partial(self._on_change, name))
            self._watched.add(name)
        while not self._changed.empty():
            self._live.pop(self._changed.get(), None)
        unknown = sorted(nodes - self._live.keys())
        found = self._store.read_each([paths.live_node(name) for name in unknown])
        for name, live in zip(unknown, found, strict=True):
            addresses = live.value.addresses if isinstance(live, Versioned) else ()
            self._live[name] = addresses[0] if addresses else ""
        return {name: self._live[name] for name in sorted(nodes) if self._live[name]}

    def _on_change(self, node: str, _: str) -> None:
        """Also after each reconnect."""
        self._changed.put(node)
