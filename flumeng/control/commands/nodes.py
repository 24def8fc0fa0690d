"""Changes of nodes. ``discard`` also removes the journals of a lost host with their acks, unless
another node has an in-sync replica. Every removal fails while the node is live."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from flumeng.control.commands.lookup import require_node
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import (
    SETTINGS,
    SPARK,
    SettingRow,
    SparkSetting,
    require_fitting,
    without_chokes,
)
from flumeng.control.snapshot import journal_registry
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Path,
    Put,
    ReadableStore,
    Remove,
    Store,
    Unreadable,
    Version,
    Write,
)
from flumeng.journal.replication.membership import node_of
from flumeng.platform.errors import ConflictError, CorruptError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import bootstrap, paths, records

V = TypeVar("V")

VERBS = {"draining": "drain", "active": "undrain"}


@dataclass(frozen=True)
class Left:
    """Remaining ties of a node: tasks (``flow/task``), journals, replicas, unreadable records."""

    tasks: tuple[str, ...]
    journals: tuple[str, ...]
    replicas: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tasks or self.journals or self.replicas or self.unreadable)

    @property
    def lines(self) -> list[str]:
        return [
            *(f"task {key}" for key in self.tasks),
            *(f"journal {journal}" for journal in self.journals),
            *(f"a replica of journal {journal}" for journal in self.replicas),
            *(f"an unreadable record: {why}" for why in self.unreadable),
        ]

    def __str__(self) -> str:
        counts = (
            (len(self.tasks), "task", "tasks"),
            (len(self.journals), "journal", "journals"),
            (len(self.replicas), "replica of a journal", "replicas of journals"),
            (len(self.unreadable), "unreadable record", "unreadable records"),
        )
        parts = (f"{count} {noun if count == 1 else many}" for count, noun, many in counts if count)
        return " and ".join(parts) or "nothing"


def left(store: ReadableStore, node: str) -> Left:
    """Return the tasks planned, assigned or run on the node (drained ones only if run), and the
    journals and replicas that it keeps."""
    planned = {
        f"{flow}/{name}": task
        for flow, plan in read_plans(store, store.children(paths.flows())).items()
        for name, task in plan.value.tasks.items()
        if task.node == node
    }
    unreadable: list[str] = []
    assigned: tuple[records.AssignedTask, ...] = ()
    try:
        assignment = read_assignment(store, node)
        assigned = assignment.value.tasks if assignment else ()
    except (CorruptError, UserError) as error:
        unreadable.append(str(error))
    (status,) = store.read_each([paths.status(node)])
    empty = {  # they only stay because no other node may run them
        key
        for key, task in planned.items()
        if task.kind == records.COLLECT and task.state == "draining" and not task.partitions
    }
    tasks = {*planned, *(f"{task.flow}/{task.task}" for task in assigned)} - empty
    if status is not None and store.exists(paths.live_node(node)):
        if isinstance(status, Unreadable):
            unreadable.append(str(status))
        else:
            tasks.update(status.value.tasks)
    registered = journal_registry.journals(store)
    kept = tuple(name for name, j in registered.items() if j.primary == node)
    held = tuple(name for name, j in registered.items() if node in j.replicas and name not in kept)
    return Left(tuple(sorted(tasks)), kept, held, tuple(unreadable))


def set_node_desired(operator: Operator, node: str, desired: str) -> bool:
    """Set the node to ``draining`` or ``active``; return whether that is a change. Draining moves
    its collect tasks, stops its sources and closes its journals. Raises ``UserError``."""
    current = require_node(operator.store, node)
    after = replace(current.value, desired=desired)
    return operator.change(paths.node(node), current, after, f"node {VERBS[desired]} {node}")


def label_node(
    operator: Operator, node: str, given: Mapping[str, str], taken: Collection[str]
) -> Mapping[str, str]:
    """Set the labels in ``given`` and remove those in ``taken``; return all labels."""
    current = require_node(operator.store, node)
    labels = _changed(current.value.labels, given, taken)
    command = f"node label {node} {_words(given, taken)}"
    operator.change(paths.node(node), current, replace(current.value, labels=labels), command)
    return labels


def resize_node(
    operator: Operator, node: str, given: Mapping[str, float], taken: Collection[str]
) -> Mapping[str, float]:
    """Set the capacities in ``given`` and remove those in ``taken``; return all capacities."""
    current = require_node(operator.store, node)
    capacity = _changed(current.value.capacity, given, taken)
    words = _words({key: f"{number:g}" for key, number in given.items()}, taken)
    after = replace(current.value, capacity=capacity)
    operator.change(paths.node(node), current, after, f"node capacity {node} {words}")
    return capacity


def decommission_node(operator: Operator, node: str) -> None:
    """Remove a node. Raises ``ConflictError`` if it is live or has tasks, journals or replicas."""
    store = operator.store
    current = require_node(store, node)
    own = removal(store, node, current.version)
    if store.exists(paths.live_node(node)):
        raise ConflictError(f"node {node} is live: drain it, then stop it")
    remains = left(store, node)
    if remains:
        unreadable = "; ".join(remains.unreadable)
        drain = f"drain it first (`flumeng node drain {node}`)"
        first = f"see `flumeng schema verify` ({unreadable})" if unreadable else drain
        raise ConflictError(
            f"node {node} still has {remains}: {first}, or, if its host is gone for good, give up "
            "its events with --discard"
        )
    operator.commit(own, f"node decommission {node}")


def _changed(
    before: Mapping[str, V], given: Mapping[str, V], taken: Collection[str]
) -> dict[str, V]:
    return {**{key: value for key, value in before.items() if key not in taken}, **given}


def _words(given: Mapping[str, str], taken: Collection[str]) -> str:
    return " ".join(
        [*(f"{key}={value}" for key, value in given.items()), *(f"{k}-" for k in taken)]
    )


def removal(store: Store, node: str, version: Version) -> list[Write]:
    """Return the writes that remove a node at ``version``; they fail while the node is live."""
    own: list[Write] = [Remove(paths.node(node), version), *without_chokes(store, node=node)]
    for path in below(store, node):
        (record,) = store.read_each([path])
        if record is not None:
            own.insert(0, Remove(path, record.version))
    return [*absent(node), *own]


def below(store: Store, node: str) -> list[Path]:
    """Return the znodes below that of the node, parents first."""
    pages = store.children(paths.assignment(node))
    return [
        paths.story(node),
        paths.status(node),
        paths.assignment(node),
        *(paths.assignment_page(node, page) for page in pages),
    ]


def absent(node: str) -> list[Write]:
    """Return writes that fail while the node is live, since ZooKeeper has no check for absence."""
    placeholder = records.LiveNode(uuid="", incarnation="", pid=0, version="", since=0.0)
    return [Put(paths.live_node(node), placeholder, ABSENT), Remove(paths.live_node(node), ANY)]


def on_node(store: ReadableStore, node: str, rows: list[SettingRow]) -> list[SettingRow]:
    """Return the cluster's settings, with those that the node overrides."""
    own = require_node(store, node).value.spark
    return [replace(row, value=own.get(row.key.removeprefix(SPARK), row.value)) for row in rows]


def set_on_node(operator: Operator, node: str, key: str, text: str | None) -> bool:
    """Set a Spark setting of one node, or remove it (None); return whether that is a change. Raises
    ``UserError`` for another setting and an invalid value."""
    setting = SETTINGS.get(key)
    if not isinstance(setting, SparkSetting):
        keys = [name for name in SETTINGS if name.startswith(SPARK)]
        raise UserError(f"{key} cannot be set for a single node; {nearest(key, keys)}")
    current = require_node(operator.store, node)
    before = current.value.spark
    after = {name: value for name, value in before.items() if name != setting.name}
    if text is not None:
        after[setting.name] = setting.parse(text)
        require_fitting(operator.store, after)
    value_after, was = after.get(setting.name, "--unset"), before.get(setting.name, "unset")
    command = f"cluster set {key} {value_after} --node {node} (was {was})"
    return operator.change(paths.node(node), current, replace(current.value, spark=after), command)


@dataclass(frozen=True)
class DataLoss:
    """Events that a cursor loses, from ``acked`` to ``end`` (None: unknown)."""

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
    require_node(store, node)
    losses = []
    for name, journal in _journals(store, node).items():
        cursors = store.children(paths.acks(journal.flow)) or [bootstrap.CURSOR_MAIN]
        acks = store.read_each([paths.ack(journal.flow, cursor, name) for cursor in cursors])
        end = journal.end if journal.closed else None
        losses += [
            DataLoss(name, journal.flow, cursor, 0, None)
            if isinstance(ack, Unreadable)
            else DataLoss(name, journal.flow, cursor, ack.value.offset if ack else 0, end)
            for cursor, ack in zip(cursors, acks, strict=True)
        ]
    return losses


def discard_node(operator: Operator, node: str) -> list[DataLoss]:
    """Remove the node, its journals and acks; return the lost events. An interrupted call can be
    repeated. Raises ``ConflictError`` while the node is live."""
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
    writes: list[Put | Remove] = [Remove(path, ANY) for path in gone if store.exists(path)]
    writes += [*without_chokes(store, node=node), Remove(paths.node(node), current.version)]
    given_up = "; ".join(map(str, lost)) or "nothing"
    command = f"node decommission {node} --discard: gave up {given_up}"
    operator.commit_each(writes, lambda _: command, each=absent(node))
    return lost


def _journals(store: Store, node: str) -> dict[str, records.Journal]:
    registered = journal_registry.journals(store)
    others = {*store.children(paths.nodes())} - {node}
    return {
        name: journal
        for name, journal in registered.items()
        if node in (journal.primary, *map(node_of, journal.in_sync))
        and others.isdisjoint(map(node_of, journal.in_sync))
    }
