"""Operator changes of a replicated journal's replicas and primary."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from flumeng.config import SpecError, parse_flow
from flumeng.config.replicas import Replicas
from flumeng.control.commands.lookup import require_node
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.journal_registry import Source, derived_from_name
from flumeng.control.snapshot.rendezvous import chosen
from flumeng.control.zookeeper import (
    ABSENT,
    Expected,
    Put,
    ReadableStore,
    Store,
    Unreadable,
    Version,
    Versioned,
    tree,
)
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.platform.errors import ConflictError, UnknownNameError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths
from zkschema.records import REPLICA, Journal


@dataclass(frozen=True)
class Change:
    """A change of a journal's record. ``before`` is None when the record was lost."""

    name: str
    before: Journal | None
    version: Expected
    after: Journal
    command: str

    @property
    def leaves_sync(self) -> bool:
        return self.before is not None and len(self.after.in_sync) < len(self.before.in_sync)


def carry_out(operator: Operator, change: Change) -> None:
    operator.commit([Put(paths.journal(change.name), change.after, change.version)], change.command)


def promote(store: Store, name: str, to: str | None) -> Change | None:
    """Return the change that makes the in-sync replica on ``to``, or another live one, the primary;
    None when it is already. Raises ``UserError`` for an unreplicated journal and a node without a
    replica, ``ConflictError`` without a live in-sync one."""
    journal, version = require_replicated(store, name)
    replicas = {node_of(replica): replica for replica in journal.in_sync}
    if to is None:
        live = [node for node in replicas if node != journal.primary and _is_live(store, node)]
        to = chosen(name, live)
        if to is None:
            raise ConflictError(
                f"no other replica of journal {name} is in sync and live ({_in_sync(journal)}): "
                "wait for one, or accept lost events with --to NODE --unclean"
            )
    if to == journal.primary:
        return None
    if to not in replicas:
        _require_replica(journal, name, to)
        raise ConflictError(
            f"node {to} is not in sync ({_in_sync(journal)}): accepted events may be missing "
            "there; wait, or give these events up with --unclean"
        )
    _require_live(store, to)
    after = Membership.of(journal).promoted(replicas[to]).put_into(journal)
    return Change(name, journal, version, after, f"journal promote {name} --to {to}")


def promote_unclean(store: Store, name: str, to: str) -> Change:
    """Return the change that makes an out-of-sync replica the primary of a new lineage; events that
    only in-sync replicas have are lost. Recreates a missing record. Raises as
    ``promote``, and ``ConflictError`` while a live node has an undamaged in-sync replica."""
    if derived_from_name(name).node and name not in store.children(paths.journals()):
        return _begin_record(store, name, to)
    journal, version = require_replicated(store, name)
    live = [node for node in map(node_of, journal.in_sync) if _could_lead(store, node, name)]
    if live:
        raise ConflictError(
            f"the replica of {live[0]} is in sync and live, so no event has to be given up: make "
            f"it the primary with `flumeng journal promote {name} --to {live[0]}`"
        )
    _require_replica(journal, name, to)
    _require_live(store, to)
    after = Membership.of(journal).promoted_unclean(f"{to}/", uuid.uuid4().hex).put_into(journal)
    command = f"journal promote {name} --to {to} --unclean: gave up events of {_names(journal)}"
    return Change(name, journal, version, after, command)


def _begin_record(store: Store, name: str, node: str) -> Change:
    tree.require(store)
    named = derived_from_name(name)
    if named.flow not in store.children(paths.flows()):
        raise UserError(f"flow {named.flow}, which collects {name}, does not exist: apply it first")
    _require_live(store, node)
    journal = replace(
        named,
        primary=node,
        term=1,
        in_sync=(f"{node}/",),
        replicas=(node,),
        lineage=uuid.uuid4().hex,
    )
    command = f"journal promote {name} --to {node} --unclean: its record was lost"
    return Change(name, None, ABSENT, journal, command)


def add_replica(store: Store, name: str, node: str) -> Change | None:
    """Return the change that adds a replica on a node; None when it has one. Raises ``UserError``
    for an unreplicated one or unfit node, ``ConflictError`` if it is closed or the node is down."""
    journal, version = _require_open(store, name)
    if node in journal.replicas and node not in journal.leaving:
        return None
    _require_holder(store, node)
    after = replace(
        journal,
        replicas=tuple(dict.fromkeys((*journal.replicas, node))),
        leaving=_without(journal.leaving, node),
    )
    return Change(name, journal, version, after, f"journal add-replica {name} {node}")


def move(store: Store, name: str, source: str, target: str) -> Change:
    """Return the change that adds a replica on ``target`` and drops ``source``'s once enough are in
    sync. Raises as ``add_replica`` and ``drop_replica``, ``UserError`` if ``target`` has one."""
    journal, version = _require_open(store, name)
    _require_dropped(journal, name, source)
    if target in journal.replicas:
        raise UserError(
            f"node {target} already has or gets a replica: to remove that of {source}, "
            f"`flumeng journal drop-replica {name} {source}`"
        )
    _require_holder(store, target)
    after = replace(
        journal,
        replicas=(*journal.replicas, target),
        leaving=tuple(dict.fromkeys((*journal.leaving, source))),
    )
    command = f"journal move {name} --from {source} --to {target}"
    return Change(name, journal, version, after, command)


def drop_replica(store: Store, name: str, node: str) -> Change:
    """Return the change that drops the replica on a node at once. Raises as ``require_replicated``,
    and ``UserError`` if the node is the primary or has none."""
    journal, version = require_replicated(store, name)
    _require_dropped(journal, name, node)
    after = replace(
        journal,
        replicas=_without(journal.replicas, node),
        leaving=_without(journal.leaving, node),
        in_sync=tuple(replica for replica in journal.in_sync if node_of(replica) != node),
    )
    return Change(name, journal, version, after, f"journal drop-replica {name} {node}")


def others_in_sync(store: Store, name: str, own: str) -> list[str]:
    """Return the live nodes of other in-sync replicas. Raises ``ConflictError`` if all are down."""
    journal, _ = require_replicated(store, name)
    nodes = [node_of(replica) for replica in journal.in_sync if replica != own]
    live = [node for node in nodes if _is_live(store, node)]
    if nodes and not live:
        raise ConflictError(
            f"other replicas have the events that are damaged here, but none of their nodes is "
            f"live ({', '.join(nodes)}): start one of them first"
        )
    return live


def require_replicated(store: ReadableStore, name: str) -> tuple[Journal, Version]:
    """Return a replicated journal and its version. Raises ``UserError`` for an unknown or
    unreplicated journal, ``ConflictError`` for one that has ended, ``CorruptError``."""
    tree.require(store)
    names = store.children(paths.journals())
    (journal,) = store.read_each([paths.journal(name)]) if name in names else (None,)
    if journal is None:
        hint = nearest(name, names) if names else "there are none"
        raise UnknownNameError(f'there is no journal "{name}"; {hint}')
    if isinstance(journal, Unreadable):
        raise journal.error
    if not journal.value.lineage:
        raise UserError(f"journal {name} has no replicas: its flow lacks `durability: replicated`")
    if journal.value.gone:
        raise ConflictError(f"journal {name} has ended, and is being removed")
    return journal.value, journal.version


def replicas_of(store: Source, flow: str) -> Replicas | None:
    """Return the replication in the flow's current text; None when the flow is not replicated."""
    (record,) = store.read_each([paths.flow(flow)])
    if not isinstance(record, Versioned):
        return None
    (text,) = store.read_each([paths.revision(flow, str(record.value.revision))])
    try:
        spec = parse_flow(text.value.effective) if isinstance(text, Versioned) else None
    except SpecError:
        return None
    return spec.replicas if spec is not None and spec.durability == "replicated" else None


def _require_open(store: ReadableStore, name: str) -> tuple[Journal, Version]:
    journal, version = require_replicated(store, name)
    if journal.closed:
        raise ConflictError(
            f"journal {name} is closed: it keeps its replicas until it is collected"
        )
    return journal, version


def _require_dropped(journal: Journal, name: str, node: str) -> None:
    if node == journal.primary:
        raise UserError(
            f"node {node} is the primary of {name}: promote another replica first, "
            f"`flumeng journal promote {name}`"
        )
    _require_replica(journal, name, node)


def _require_replica(journal: Journal, name: str, node: str) -> None:
    if node not in journal.replicas:
        raise UserError(
            f"node {node} holds no replica of journal {name}: expected one of {_replicas(journal)}"
        )


def _require_holder(store: ReadableStore, node: str) -> None:
    record = require_node(store, node).value
    if REPLICA not in record.roles:
        raise UserError(f"node {node} lacks role {REPLICA} (`flumeng node run --role {REPLICA}`)")
    if record.desired != "active":
        raise UserError(f"node {node} is {record.desired} (`flumeng node undrain {node}`)")
    _require_live(store, node)


def _require_live(store: ReadableStore, node: str) -> None:
    require_node(store, node)
    if not _is_live(store, node):
        raise ConflictError(f"node {node} is not live: start it first")


def _is_live(store: ReadableStore, node: str) -> bool:
    return store.read_each([paths.live_node(node)]) != [None]


def _could_lead(store: ReadableStore, node: str, journal: str) -> bool:
    (status,) = store.read_each([paths.status(node)])
    problems = status.value.problems if isinstance(status, Versioned) else {}
    return _is_live(store, node) and str(paths.journal(journal)) not in problems


def _without(names: tuple[str, ...], dropped: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != dropped)


def _in_sync(journal: Journal) -> str:
    return f"{_names(journal)} {'is' if len(journal.in_sync) == 1 else 'are'} in sync"


def _names(journal: Journal) -> str:
    return ", ".join(map(node_of, journal.in_sync))


def _replicas(journal: Journal) -> str:
    return ", ".join(node for node in journal.replicas if node != journal.primary) or "none"
