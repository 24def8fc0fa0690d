"""Acks that lie below what their journals keep, moved on to what is there.

A journal drops only what every reader has acked, so an ack below that was lost and begun anew:
ZooKeeper was wiped, an older export was imported, or a host that was given up came back. The events
between are on no disk any more, and were delivered before as far as anybody knows. Collectors do
not pass over them by themselves; they wait for an operator, and notice what is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flumeng.control.commands import audit
from flumeng.control.commands.intents import refuse_decided
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, Put, Store, Unreadable, Versioned
from flumeng.control.zookeeper.transaction import singly
from zkschema import paths, records


@dataclass(frozen=True)
class Advanced:
    """One cursor's ack of a journal: everything from ``acked`` up to ``floor`` is passed over."""

    journal: str
    flow: str
    cursor: str
    acked: int
    floor: int

    @property
    def events(self) -> int:
        return self.floor - self.acked


@dataclass(frozen=True)
class Advances:
    """``unreadable``: journals and acks of which nobody can tell; they stay as they are."""

    advanced: tuple[Advanced, ...]
    unreadable: tuple[Unreadable, ...] = ()


def behind(store: Store, floors: Mapping[str, int]) -> Advances:
    """The acks of journals that lie below the ``floors`` of these."""
    found, unreadable = _found(store, floors)
    return Advances(tuple(advanced for advanced, _ in found), unreadable)


def advance_acks(operator: Operator, floors: Mapping[str, int]) -> Advances:
    """Move every ack that lies below its journal's floor to it; gives those that were moved.

    In transactions of many acks each, without what cannot be read; interrupted, it is gone on with
    by calling it again. Raises ``ConflictError`` when an ack changes meanwhile, or is in a batch
    that a task has decided to write, ``UnavailableError``.
    """
    store = operator.store
    found, unreadable = _found(store, floors)
    refuse_decided(store, ((advanced.flow, advanced.journal) for advanced, _ in found))
    puts = (put for _, put in found)
    for part in singly(store.scale, puts, room_bytes=audit.room_bytes(store.scale)):
        command = " ".join(["ack advance", *(write.path.name for write in part)])
        operator.commit(part, command)
    return Advances(tuple(advanced for advanced, _ in found), unreadable)


def _found(
    store: Store, floors: Mapping[str, int]
) -> tuple[list[tuple[Advanced, Put]], tuple[Unreadable, ...]]:
    names = sorted(floors)
    journals = store.read_each([paths.journal(name) for name in names])
    flows = {
        name: journal.value.flow
        for name, journal in zip(names, journals, strict=True)
        if isinstance(journal, Versioned)
    }
    cursors = {flow: store.children(paths.acks(flow)) for flow in set(flows.values())}
    places = [(name, flow, cursor) for name, flow in flows.items() for cursor in cursors[flow]]
    acks = store.read_each([paths.ack(flow, cursor, name) for name, flow, cursor in places])
    found = []
    for (name, flow, cursor), ack in zip(places, acks, strict=True):
        if isinstance(ack, Unreadable):
            continue
        before = ack.value if ack else records.Ack(epoch=0, offset=0)
        if before.offset < floors[name]:
            moved = replace(
                before, offset=max(floors[name], before.emitted), joined=None, leader_epoch=None
            )
            put = Put(paths.ack(flow, cursor, name), moved, ack.version if ack else ABSENT)
            found.append((Advanced(name, flow, cursor, before.offset, floors[name]), put))
    return found, tuple(one for one in (*journals, *acks) if isinstance(one, Unreadable))
