"""The end of a node whose host is gone for good: what only its disk held is given up, and said.

Its journals are struck with their acks, so that nobody waits for them; then its own znodes go, and
masters give its tasks to others. A journal of which another registered node has a copy in sync
stays: masters let that one lead. Nothing of it may be live: each transaction fails when it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flumeng.control.commands import audit
from flumeng.control.commands.nodes import absent, below, require_node
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import without_chokes
from flumeng.control.snapshot import journal_registry
from flumeng.control.zookeeper import ANY, Path, Remove, Store, Unreadable, Write
from flumeng.control.zookeeper.transaction import singly
from flumeng.journal.replication.membership import node_of
from flumeng.platform.errors import ConflictError
from zkschema import bootstrap, paths, records


@dataclass(frozen=True)
class DataLoss:
    """One journal, as one cursor reads it: what lies from ``acked`` up to ``end`` is given up.

    ``end`` and ``events`` are None when only the node knew how far its journal reached, or the ack
    cannot be read.
    """

    journal: str
    flow: str
    cursor: str
    acked: int
    end: int | None

    @property
    def events(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.acked)

    def __str__(self) -> str:
        events = "unknown" if self.events is None else self.events
        return f"{self.journal} of {self.flow} for {self.cursor}: {events} events"


def data_loss(store: Store, node: str) -> list[DataLoss]:
    """What ``discard_node`` would give up. Raises ``UserError`` for an unknown node."""
    require_node(store, node)
    found = []
    for name, journal in _journals(store, node).items():
        cursors = store.children(paths.acks(journal.flow)) or [bootstrap.CURSOR_MAIN]
        acks = store.read_each([paths.ack(journal.flow, cursor, name) for cursor in cursors])
        end = journal.end if journal.closed else None
        found += [
            DataLoss(name, journal.flow, cursor, 0, None)
            if isinstance(ack, Unreadable)
            else DataLoss(name, journal.flow, cursor, ack.value.offset if ack else 0, end)
            for cursor, ack in zip(cursors, acks, strict=True)
        ]
    return found


def discard_node(operator: Operator, node: str) -> list[DataLoss]:
    """Remove the node with all that it still holds; gives what is given up by that.

    Interrupted, it is gone on with by calling it again. Raises ``UserError`` for an unknown node,
    ``ConflictError`` when it is live or something of it changes meanwhile, ``UnavailableError``.
    """
    store = operator.store
    current = require_node(store, node)
    if store.exists(paths.live_node(node)):
        raise ConflictError(f"node {node} is live: its host is not gone; drain it instead")
    lost = data_loss(store, node)
    gone: list[Path] = []
    for name, journal in _journals(store, node).items():
        gone.append(paths.journal(name))
        cursors = store.children(paths.acks(journal.flow))
        gone += [paths.ack(journal.flow, cursor, name) for cursor in cursors]
    gone += reversed(below(store, node))
    writes: list[Write] = [Remove(path, ANY) for path in gone if store.exists(path)]
    writes += [*without_chokes(store, node=node), Remove(paths.node(node), current.version)]
    said = _said(node, lost)
    room_bytes, each = audit.room_bytes(store.scale), absent(node)
    for part in singly(store.scale, writes, each=each, room_bytes=room_bytes):
        operator.commit([*each, *part], said)
    return lost


def _said(node: str, lost: Sequence[DataLoss]) -> str:
    return f"node decommission {node} --discard: gave up {'; '.join(map(str, lost)) or 'nothing'}"


def _journals(store: Store, node: str) -> dict[str, records.Journal]:
    known = journal_registry.journals(store)
    others = {*store.children(paths.nodes())} - {node}
    return {
        name: journal
        for name, journal in known.items()
        if node in (journal.primary, *map(node_of, journal.in_sync))
        and others.isdisjoint(map(node_of, journal.in_sync))
    }
