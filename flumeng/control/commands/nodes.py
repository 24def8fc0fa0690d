"""Changes of nodes: whether one may get work, what it is labelled with, and its end.

A node is only ever told what is wanted of it. What is left on it is read from ZooKeeper, and it
goes when nothing is left and nobody holds its name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import without_chokes
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
    Versioned,
    Write,
    tree,
)
from flumeng.platform.errors import ConflictError, CorruptError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths, records

V = TypeVar("V")

VERBS = {"draining": "drain", "active": "undrain"}


@dataclass(frozen=True)
class Left:
    """What still ties a node to the cluster: tasks (``flow/task``), journals that it leads, those
    of which it holds a copy, and what nobody knows while a record of it is unreadable."""

    tasks: tuple[str, ...]
    journals: tuple[str, ...]
    copies: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tasks or self.journals or self.copies or self.unreadable)

    @property
    def lines(self) -> list[str]:
        return [
            *(f"task {key}" for key in self.tasks),
            *(f"journal {journal}" for journal in self.journals),
            *(f"a copy of journal {journal}" for journal in self.copies),
            *(f"whatever {what}" for what in self.unreadable),
        ]

    def __str__(self) -> str:
        counts = (
            (len(self.tasks), "task", "tasks"),
            (len(self.journals), "journal", "journals"),
            (len(self.copies), "copy of a journal", "copies of journals"),
            (len(self.unreadable), "unreadable record", "unreadable records"),
        )
        parts = (f"{count} {one if count == 1 else many}" for count, one, many in counts if count)
        return " and ".join(parts) or "nothing"


def left(store: Store, node: str) -> Left:
    """What is planned on the node, assigned to it or still run by it, and the journals it keeps."""
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
    empty = {key for key, task in planned.items() if _is_empty(task)}
    tasks = {*planned, *(f"{task.flow}/{task.task}" for task in assigned)} - empty
    if status is not None and store.exists(paths.live_node(node)):
        if isinstance(status, Unreadable):
            unreadable.append(str(status))
        else:
            tasks.update(status.value.tasks)
    known = journal_registry.journals(store)
    kept = tuple(name for name, j in known.items() if j.primary == node)
    held = tuple(name for name, j in known.items() if node in j.copies and name not in kept)
    return Left(tuple(sorted(tasks)), kept, held, tuple(unreadable))


def set_node_desired(operator: Operator, node: str, desired: str) -> bool:
    """Want the node ``draining`` or ``active``; gives whether that is a change.

    Draining: its collect tasks go to other nodes, its sources stop, its journals are closed and
    collected to their end. Raises ``UserError`` for an unknown node, ``ConflictError``,
    ``UnavailableError``.
    """
    current = require_node(operator.store, node)
    if current.value.desired == desired:
        return False
    command = f"node {VERBS[desired]} {node}"
    wanted = replace(current.value, desired=desired)
    operator.commit([Put(paths.node(node), wanted, current.version)], command)
    return True


def label_node(
    operator: Operator, node: str, given: Mapping[str, str], taken: Collection[str]
) -> Mapping[str, str]:
    """Set the labels in ``given`` and remove those in ``taken``; gives the labels that it has now.

    Raises as ``set_node_desired``.
    """
    current = require_node(operator.store, node)
    labels = _changed(current.value.labels, given, taken)
    if labels != dict(current.value.labels):
        command = f"node label {node} {_words(given, taken)}"
        wanted = replace(current.value, labels=labels)
        operator.commit([Put(paths.node(node), wanted, current.version)], command)
    return labels


def resize_node(
    operator: Operator, node: str, given: Mapping[str, float], taken: Collection[str]
) -> Mapping[str, float]:
    """Set how much fits on the node in each dimension in ``given``, and remove the bounds in
    ``taken``; gives the capacity that it has now.

    Raises as ``set_node_desired``.
    """
    current = require_node(operator.store, node)
    capacity = _changed(current.value.capacity, given, taken)
    if capacity != dict(current.value.capacity):
        words = _words({key: f"{number:g}" for key, number in given.items()}, taken)
        command = f"node capacity {node} {words}"
        wanted = replace(current.value, capacity=capacity)
        operator.commit([Put(paths.node(node), wanted, current.version)], command)
    return capacity


def decommission_node(operator: Operator, node: str) -> None:
    """Remove all znodes of a node that is not live and on which nothing is left, and its chokes.

    Raises ``UserError`` for an unknown node, ``ConflictError`` while it is live, while something is
    left, or when either changes meanwhile, and ``UnavailableError``.
    """
    store = operator.store
    current = require_node(store, node)
    own = removal(store, node, current.version)
    if store.exists(paths.live_node(node)):
        raise ConflictError(f"node {node} is live: drain it, and stop it when it is done")
    remains = left(store, node)
    if remains:
        raise ConflictError(
            f"node {node} still has {remains}: drain it first (`flumeng node drain {node}`), or, "
            "when its host is gone for good, give up what only it held with --discard"
        )
    operator.commit(own, f"node decommission {node}")


def require_node(store: ReadableStore, node: str) -> Versioned[records.Node]:
    """The node's record. Raises ``UserError`` with the nearest name when there is none."""
    tree.require(store)
    known = store.children(paths.nodes())
    found = store.read(paths.node(node)) if node in known else None
    if found is None:
        hint = nearest(node, known) if known else "no node has registered yet"
        raise UserError(f'there is no node "{node}"; {hint}')
    return found


def _changed(
    before: Mapping[str, V], given: Mapping[str, V], taken: Collection[str]
) -> dict[str, V]:
    return {**{key: value for key, value in before.items() if key not in taken}, **given}


def _words(given: Mapping[str, str], taken: Collection[str]) -> str:
    return " ".join(
        [*(f"{key}={value}" for key, value in given.items()), *(f"{k}-" for k in taken)]
    )


def _is_empty(task: records.PlannedTask) -> bool:
    """Drains and reads nothing: it has only stayed because no other node may run it."""
    return task.kind == records.COLLECT and task.state == "draining" and not task.partitions


def removal(store: Store, node: str, version: Version) -> list[Write]:
    """What removes all znodes of a node, whose own is at ``version``, and its chokes; refused when
    the node is live, or says something meanwhile."""
    own: list[Write] = [Remove(paths.node(node), version), *without_chokes(store, node=node)]
    for path in below(store, node):
        (found,) = store.read_each([path])
        if found is not None:
            own.insert(0, Remove(path, found.version))
    return [*absent(node), *own]


def below(store: Store, node: str) -> list[Path]:
    """What may lie below the node's own znode, parents first."""
    pages = store.children(paths.assignment(node))
    return [
        paths.story(node),
        paths.status(node),
        paths.assignment(node),
        *(paths.assignment_page(node, page) for page in pages),
    ]


def absent(node: str) -> list[Write]:
    """Lets a transaction fail when the node is live: there is no other check for absence."""
    nobody = records.LiveNode(uuid="", incarnation="", pid=0, version="", since=0.0)
    return [Put(paths.live_node(node), nobody, ABSENT), Remove(paths.live_node(node), ANY)]
