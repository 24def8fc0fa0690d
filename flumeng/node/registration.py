"""The node's own znodes, kept in line with what the machine says. Level-triggered: ``publish``
compares and writes only differences, so that a lost connection costs nothing but a repetition."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flumeng import __version__
from flumeng.errors import UserError
from flumeng.journal.names import node_of
from flumeng.node.events import Acked, Wanted
from flumeng.state.assignment_pages import read_assignment
from flumeng.store import ABSENT, ANY, Put, Remove, Store, Versioned, Write
from zkschema import paths, table
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Journal, LiveNode, Node, NodeStatus


@dataclass(frozen=True)
class Identity:
    """Who the node is; ``uuid`` is that of its data directory."""

    name: str
    uuid: str
    roles: tuple[str, ...]
    zone: str
    labels: Mapping[str, str]
    capacity: Mapping[str, float] = field(default_factory=dict)


class Registration:
    """Calls raise UnavailableError while ZooKeeper is away and ConflictError on a lost race."""

    def __init__(self, store: Store, identity: Identity) -> None:
        self._store = store
        self._me = identity
        self._incarnation = uuid.uuid4().hex
        self._since = time.time()
        self._texts: dict[tuple[str, int], str] = {}
        self._registered: dict[str, Versioned[Journal]] | None = None
        self._status: Versioned[NodeStatus] | None = None
        self._live: LiveNode | None = None
        self._session = 0

    def register(self) -> None:
        """Make sure that ``/nodes/N`` is there and is ours; what we said of us is compared anew.

        Zone, labels and capacity are what the node was first started with until an operator changes
        them. Raises UserError when a host with another identity has the name.
        """
        self._status = None
        path = paths.node(self._me.name)
        found = self._store.read(path)
        if found is None:
            node = Node(
                uuid=self._me.uuid,
                roles=self._me.roles,
                zone=self._me.zone,
                labels=dict(self._me.labels),
                capacity=dict(self._me.capacity),
            )
            self._store.write(path, node, ABSENT)
            return
        if found.value.uuid != self._me.uuid:
            raise UserError(
                f"a node named {self._me.name} is registered already, from another data directory: "
                "choose another --name, or give this node the data directory it had, or, when that "
                f"is gone for good: `flumeng node decommission {self._me.name} --discard`"
            )
        if found.value.roles != self._me.roles:
            self._store.write(path, replace(found.value, roles=self._me.roles), found.version)

    def announce(self, addresses: tuple[str, ...]) -> None:
        """Keep the ephemeral znode of this session; one left by our last session is replaced."""
        if self._live and (self._live.addresses, self._session) == (
            addresses,
            self._store.session,
        ):
            return
        path = paths.live_node(self._me.name)
        live = LiveNode(
            uuid=self._me.uuid,
            incarnation=self._incarnation,
            addresses=addresses,
            pid=os.getpid(),
            version=__version__,
            since=self._since,
            schema=table.VERSION,
        )
        session = self._store.session
        found = self._store.read(path)
        if found is None:
            self._store.write(path, live, ABSENT)
        elif found.session == session:
            self._store.write(path, live, found.version)
        else:
            self._store.commit([Remove(path, found.version), Put(path, live, ABSENT)])
        self._live, self._session = live, session

    def assignment(self) -> Wanted | None:
        """What to run now, with the texts; None before a master has said anything."""
        found = read_assignment(self._store, self._me.name)
        if found is None:
            return None
        named = {(task.flow, task.revision) for task in found.value.tasks}
        self._texts = {key: self._texts.get(key) or self._text(*key) for key in named}
        return Wanted(found.version.number, found.value, dict(self._texts))

    def report(self, status: NodeStatus) -> None:
        path = paths.status(self._me.name)
        if self._status is None:
            self._status = self._store.read(path)
        if self._status is None:
            self._status = Versioned(status, self._store.write(path, status, ABSENT))
        elif self._status.value != status:
            known, self._status = self._status, None  # not known while a write may be on its way
            self._status = Versioned(status, self._store.write(path, status, known.version))

    def enter_journals(self, local: Mapping[str, Mapping[str, Any]]) -> None:
        """Register what the ingest worker has on disk: from then on it is collected.

        What another node has registered goes with the disk: the host was called otherwise then.
        Raises UserError while that node is live, since one of them works on a copy.
        """
        registered = self._journals()
        self._take_over([name for name in local if name not in registered])
        for name, said in local.items():
            journal = Journal(
                flow=said["flow"],
                node=self._me.name,
                primary=self._me.name,
                term=said["term"],
                in_sync=(self._me.name,),
                closed=said["closed"],
                end=said["end"],
            )
            known = registered.get(name)
            if known is None or known.value != journal:
                expect = known.version if known else ABSENT
                version = self._store.write(paths.journal(name), journal, expect)
                registered[name] = Versioned(journal, version)

    def _take_over(self, journals: Sequence[str]) -> None:
        found = self._store.read_many([paths.journal(name) for name in journals])
        for name, known in zip(journals, found, strict=True):
            if known is None:
                continue
            other = known.value.primary
            if other != self._me.name and self._store.exists(paths.live_node(other)):
                raise UserError(
                    f"journal {name} is also on node {other}, which is live: one of the two data "
                    "directories is a copy, and may not be used"
                )
            self._journals()[name] = known

    def acks(self, kept_flows: Iterable[str]) -> Acked:
        """Up to where the node's journals are acked, and what nobody needs any more."""
        registered = self._journals()
        found = self._store.read_many(
            [paths.ack(known.value.flow, CURSOR_MAIN, name) for name, known in registered.items()]
        )
        acks = {name: ack.value.offset for name, ack in zip(registered, found, strict=True) if ack}
        unneeded = (
            name
            for name, known in registered.items()
            if known.value.closed
            and (
                acks.get(name, 0) >= (known.value.end or 0)
                or not self._store.exists(paths.flow(known.value.flow))
            )
        )
        gone = (flow for flow in kept_flows if not self._store.exists(paths.flow(flow)))
        return Acked(acks, tuple(unneeded), tuple(gone))

    def deregister(self, journals: Iterable[str]) -> None:
        """Remove the registration of journals that nobody needs and that are gone from disk."""
        registered = self._journals()
        for name in journals:
            known = registered[name]
            writes: list[Write] = [Remove(paths.journal(name), known.version)]
            ack = paths.ack(known.value.flow, CURSOR_MAIN, name)
            if self._store.exists(ack):
                writes.append(Remove(ack, ANY))
            self._store.commit(writes)
            del registered[name]

    def look_anew(self) -> None:
        """After a lost race or a new connection: forget what was read."""
        self._status = None
        self._registered = None

    def _journals(self) -> dict[str, Versioned[Journal]]:
        """The registered journals of this node, read once and then followed. Only its own are read:
        n nodes that read those of all would read n times n."""
        if self._registered is None:
            listed = self._store.children(paths.journals())
            names = [name for name in listed if node_of(name) == self._me.name]
            found = self._store.read_many([paths.journal(name) for name in names])
            self._registered = {
                name: journal
                for name, journal in zip(names, found, strict=True)
                if journal and journal.value.primary == self._me.name
            }
        return self._registered

    def _text(self, flow: str, revision: int) -> str:
        found = self._store.read(paths.revision(flow, str(revision)))
        return found.value.text if found else ""
