"""Actions on nodes, tasks, queues, cursors and the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from msgspec import Meta

from flumeng.console.actions.action import (
    Act,
    Action,
    Answer,
    Field,
    Foreseen,
    Given,
    Line,
    Lines,
    Name,
    lines_of,
    says,
)
from flumeng.console.actions.flows import FLOW_PAGE
from flumeng.console.actions.words import as_argument, confirmed
from flumeng.console.console import Console
from flumeng.control.commands import acks, lease_breaks, nodes, preview, queues, settings, tasks
from flumeng.control.commands.lookup import require_flow, require_node
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.queues import Decision
from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import UserError
from zkschema import records

NODE_PAGE = "/nodes/{node}"
CURSORS = "/cursors"
SETTINGS = "/settings"
ITEMS = Field(
    "items",
    "The failed items; none: all of them.",
    Annotated[list[Name], Meta(max_length=1000)],
    words=lambda _name, items: items or ["--all"],
)


def _desire(desired: str) -> Act:
    def act(_console: Console, operator: Operator, given: Given) -> Answer:
        node = given["node"]
        changed = nodes.set_node_desired(operator, node, desired)
        left = nodes.left(operator.store, node)
        return Answer({"node": node, "changed": changed, "left": asdict(left)})

    return act


def _draining(_console: Console, store: ReadableStore, given: Given) -> Foreseen:
    planned = preview.drain(store, given["node"])
    first = "the node gets no work; its tasks are handed off, and its journals collected"
    return Foreseen([first, *lines_of(planned)], planned)


def _decommission(_console: Console, operator: Operator, given: Given) -> Answer:
    node = given["node"]
    lost: Sequence[nodes.DataLoss] = ()
    if given.get("discard"):
        lost = nodes.discard_node(operator, node)
    else:
        nodes.decommission_node(operator, node)
    return Answer({"node": node, "lost": [{**asdict(row), "events": row.events} for row in lost]})


def _decommissioning(console: Console, _store: ReadableStore, given: Given) -> Foreseen:
    node = given["node"]
    if not given.get("discard"):
        return Foreseen([f"node {node} is removed: it is stopped, and nothing is left on it"])
    lost = [f"events are given up: {row}" for row in nodes.data_loss(console.store, node)]
    return Foreseen([f"node {node} is removed with its journals", *(lost or ["no event is lost"])])


def _labels(given: Given) -> tuple[dict[str, str], list[str]]:
    changes: dict[str, str] = {}
    for text in given.get("set", ()):
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(f"a label is KEY=VALUE, not {text!r}")
        changes[key] = value
    taken = [*given.get("remove", ())]
    if both := sorted({*taken} & {*changes}):
        raise UserError(f"a label cannot be set and removed at once: {both[0]}")
    if not changes and not taken:
        raise UserError("name labels to set or to remove")
    return changes, taken


def _label(_console: Console, operator: Operator, given: Given) -> Answer:
    labels = nodes.label_node(operator, given["node"], *_labels(given))
    return Answer({"node": given["node"], "labels": {**labels}})


def _labelling(_console: Console, store: ReadableStore, given: Given) -> Foreseen:
    changes, taken = _labels(given)
    now = require_node(store, given["node"]).value.labels
    has = ", ".join(f"{key}={value}" for key, value in now.items())
    return Foreseen(
        [
            f"node {given['node']} has {has or 'no labels'}",
            *(f"{key}={value} is set" for key, value in changes.items()),
            *(f"{key} is removed" for key in taken),
            "flows that require labels may move",
        ]
    )


def _key(given: Given) -> str:
    return f"{given['flow']}/{given['task']}"


def _restart(_console: Console, operator: Operator, given: Given) -> Answer:
    return Answer(tasks.restart_task(operator, _key(given)).restarted)


def _restarting(_console: Console, store: ReadableStore, given: Given) -> Foreseen:
    planned = preview.restart(store, _key(given))
    return Foreseen([*lines_of(planned), "nothing is lost"], planned)


def _move(_console: Console, operator: Operator, given: Given) -> Answer:
    change = tasks.move_task(operator, _key(given), given["node"])
    return Answer({"task": _key(given), "node": given["node"], "changed": change is not None})


def _moving(_console: Console, store: ReadableStore, given: Given) -> Foreseen:
    planned = preview.move(store, _key(given), given["node"])
    return Foreseen(
        [*lines_of(planned), "masters may move it again later to balance the load"], planned
    )


def _queue_action(decision: Decision, title: str, doc: str, sentence: str) -> Action:
    def foresee(_console: Console, store: ReadableStore, given: Given) -> Foreseen:
        names = queues.failed_items(store, given["flow"], given.get("items", ()))
        more = [f"and {len(names) - 20} more"] if len(names) > 20 else []
        return Foreseen([f"{len(names)} failed items {sentence}", *[*names][:20], *more])

    def act(_console: Console, operator: Operator, given: Given) -> Answer:
        require_flow(operator.store, given["flow"])
        names = queues.decide(operator, given["flow"], given.get("items", ()), decision)
        return Answer({"flow": given["flow"], "items": len(names)})

    return Action(
        f"queue-{decision}",
        f"/queues/{{flow}}/{decision}",
        title,
        doc,
        f"queue {decision} {{flow}}",
        foresee,
        act,
        "/queues/{flow}",
        (ITEMS,),
    )


def _end(_console: Console, operator: Operator, given: Given) -> Answer:
    acks.delete_cursor(operator, given["flow"], given["cursor"])
    return Answer({"flow": given["flow"], "cursor": given["cursor"]})


def _acknowledge(_console: Console, operator: Operator, given: Given) -> Answer:
    flow, cursor = given["flow"], given.get("cursor")
    if cursor:
        broke = lease_breaks.acknowledge(operator, flow, cursor)
    else:
        broke = lease_breaks.acknowledge_own(operator, flow)
    return Answer({"flow": flow, "cursor": cursor, "events": broke.events})


def _acknowledging(_console: Console, _store: ReadableStore, given: Given) -> Foreseen:
    whose = f"cursor {given['cursor']} of flow" if given.get("cursor") else "the own lease of flow"
    return Foreseen([f"the loss of events of {whose} {given['flow']} is no longer reported"])


def _begin(_console: Console, operator: Operator, _given: Given) -> Answer:
    settings.begin_maintenance(operator)
    return Answer({"maintenance": True})


def _end_maintenance(_console: Console, operator: Operator, _given: Given) -> Answer:
    ended: records.Maintenance | None = settings.end_maintenance(operator)
    return Answer({"maintenance": False, "changed": ended is not None})


def _set(_console: Console, operator: Operator, given: Given) -> Answer:
    key, value, node = given["key"], given.get("value"), given.get("node")
    if bool(given.get("unset")) == (value is not None):
        raise UserError("give the setting a value, or restore its default with unset")
    if node is not None:
        changed = nodes.set_on_node(operator, node, key, value)
    elif value is None:
        changed = settings.unset_setting(operator, key)
    else:
        changed = settings.set_setting(operator, key, value)
    return Answer({"key": key, "value": value, "node": node, "changed": changed})


def _setting(console: Console, _store: ReadableStore, given: Given) -> Foreseen:
    rows, _ = settings.settings(console.store)
    where = "the cluster"
    if node := given.get("node"):
        rows, where = nodes.on_node(console.store, node, rows), f"node {node}"
    row = next(row for row in rows if row.key == given["key"])
    after = settings.shown(row.default) if given.get("unset") else given.get("value")
    return Foreseen(
        [
            f"{row.key} of {where} becomes {after}; it is {settings.shown(row.value)}",
            f"meaning: {row.doc}",
            "masters apply it at once",
        ]
    )


ACTIONS: tuple[Action, ...] = (
    Action(
        "node-drain", "/nodes/{node}/drain", "Drain",
        "Take a node out of use: it gets no work; its tasks are handed off, its events collected.",
        "node drain {node}", _draining, _desire("draining"), NODE_PAGE,
    ),
    Action(
        "node-undrain", "/nodes/{node}/undrain", "Use again",
        "Let a node get work again.",
        "node undrain {node}", says("node {node} may get work again"), _desire("active"), NODE_PAGE,
    ),
    Action(
        "node-decommission", "/nodes/{node}/decommission", "Remove",
        "Remove a drained and stopped node.",
        "node decommission {node}", _decommissioning, _decommission, "/nodes",
        (
            Field(
                "discard",
                "The host is gone for good: give up events that only it had.",
                bool,
                words=confirmed,
            ),
        ),
    ),
    Action(
        "node-label", "/nodes/{node}/label", "Label",
        "Set and remove labels of a node.",
        "node label {node}", _labelling, _label, NODE_PAGE,
        (
            Field("set", "Labels to set, as KEY=VALUE.", Lines, words=as_argument),
            Field(
                "remove",
                "Keys of labels to remove.",
                Lines,
                words=lambda _name, keys: [f"{key}-" for key in keys or ()],
            ),
        ),
    ),
    Action(
        "task-restart", "/tasks/{flow}/{task}/restart", "Restart task",
        "Restart a task on its node, under a higher epoch; nothing is lost.",
        "task restart {flow}/{task}", _restarting, _restart, FLOW_PAGE,
    ),
    Action(
        "task-move", "/tasks/{flow}/{task}/move", "Move task",
        "Hand a task over to another node: its owner finishes its batch first.",
        "task move {flow}/{task} {node}", _moving, _move, FLOW_PAGE,
        (Field("node", "The node.", Name, required=True),),
    ),
    _queue_action(
        "retry",
        "Retry failed items",
        "Read failed items again, from the position where they failed.",
        "are read again, from where they failed",
    ),
    _queue_action(
        "skip",
        "Skip failed items",
        "Give up failed items: their unread parts are never read.",
        "are given up: their unread parts are never read",
    ),
    Action(
        "cursor-end", "/cursors/{flow}/{cursor}/end", "End cursor",
        "End the cursor of a reader that is not a flow here.",
        "cursor end {flow} {cursor}",
        says(
            "cursor {cursor} of flow {flow} ends: no events are kept for it",
            "a reader at another site gets your name and the reason, and begins again behind the "
            "lost events; any other reader fails at its next step",
        ),
        _end, CURSORS,
    ),
    Action(
        "cursor-acknowledge", "/cursors/{flow}/acknowledge", "Acknowledge a loss",
        "Stop reporting events that were given up before they were read.",
        "cursor acknowledge {flow}", _acknowledging, _acknowledge, CURSORS,
        (
            Field(
                "cursor",
                "The lease of another site; none: the flow's own.",
                Name,
                words=as_argument,
            ),
        ),
    ),
    Action(
        "maintenance-on", "/maintenance/on", "Begin maintenance",
        "Stop all moves of tasks to other nodes.",
        "cluster maintenance on",
        says("nothing is moved until maintenance is off", "running tasks go on"),
        _begin, SETTINGS, reason_required=True,
    ),
    Action(
        "maintenance-off", "/maintenance/off", "End maintenance",
        "Allow moves of tasks again.",
        "cluster maintenance off", says("masters may move tasks again"), _end_maintenance, SETTINGS,
    ),
    Action(
        "cluster-set", "/settings/{key}", "Change a setting",
        "Change a setting of the cluster, or of Spark on a node; masters apply it at once.",
        "cluster set {key}", _setting, _set, SETTINGS,
        (
            Field("value", "Its new value.", Line, words=as_argument),
            Field("unset", "Restore the default.", bool),
            Field("node", "On that node only; for settings of Spark.", Name),
        ),
    ),
)  # fmt: skip
