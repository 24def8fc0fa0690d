"""The health of a flow, in the terms of Druid's supervisors. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flumeng.control.queries.task_status import TaskRow
from zkschema.records import COLLECT, DISCOVER

ROOM = "start a node that may run it (role, labels, capacity), or change the flow"
MEND = "fix the cause; the task is retried automatically"
UNREADABLE = "unreadable"
"""The state of a flow whose record cannot be read."""
REPAIR = "`flumeng schema verify` shows the fault"


@dataclass(frozen=True)
class FlowHealth:
    """The health of a flow. ``state``: ``running``, ``idle``, ``suspended``, ``stopping``,
    ``stopped``, ``pending``, ``unhealthy supervisor`` (discovery fails, or the flow is unreadable),
    ``unhealthy tasks`` or ``unknown``. ``detail``: ``connecting to stream``, ``discovering tasks``,
    ``creating tasks``, ``lost contact with stream``, ``discovery fails``, ``tasks fail``,
    ``retrying``, ``not readable``, ``outside its window``, or the state."""

    state: str
    detail: str
    cause: str = ""
    advice: str = ""

    def __str__(self) -> str:
        return self.state if self.state == self.detail else f"{self.state} ({self.detail})"


UNKNOWN_HEALTH = FlowHealth("unknown", "unknown")


def flow_health(
    state: str, problem: str, tasks: Sequence[TaskRow], *, idle: bool = False, waits: str = ""
) -> FlowHealth:
    """Return the health. ``problem``: a read error. ``idle``: all is delivered, nothing arrives.
    ``waits``: why nothing is read at this time of the day."""
    if state == UNREADABLE:
        return FlowHealth("unhealthy supervisor", "not readable", problem, REPAIR)
    if state == "suspended":
        return FlowHealth(state, state, "an operator paused it", "`flumeng flow resume`")
    if state != "running":
        ending = any(task.kind == COLLECT for task in tasks)
        now = "stopping" if ending else "stopped"
        return FlowHealth(now, now, f"it is set to {state}")
    if problem:
        return FlowHealth("unhealthy supervisor", "not readable", problem, "apply a corrected file")
    discover = [task for task in tasks if task.kind == DISCOVER]
    collect = [task for task in tasks if task.kind == COLLECT]
    has_partitions = any(task.partitions for task in collect)
    for task in discover:
        if task.health:
            return _of_discovery(task, has_partitions=has_partitions)
    for task in collect:
        if task.state == "retrying" or task.health:
            return _of_failing(task)
    if discover and not has_partitions:
        if any(task.state == "failed" for task in discover):
            return FlowHealth("pending", "connecting to stream", discover[0].why, "wait")
        return FlowHealth("pending", "discovering tasks", "no partition is discovered yet", "wait")
    late = [task for task in collect if task.state != "running"]
    if late or not collect:
        return _of_late(late, running=len(late) < len(collect))
    if waits:
        return FlowHealth("running", "outside its window", waits, "wait, or change `at`")
    now = "idle" if idle else "running"
    return FlowHealth(now, now)


def _of_failing(task: TaskRow) -> FlowHealth:
    if task.state == "retrying":
        now = "unhealthy tasks" if task.health else "running"
        return FlowHealth(now, "retrying", f"task {task.key}: {task.why}", MEND)
    why = f"task {task.key} has failed several times in a row: {task.why}"
    return FlowHealth("unhealthy tasks", "tasks fail", why, MEND)


def _of_late(late: Sequence[TaskRow], *, running: bool) -> FlowHealth:
    now = "running" if running else "pending"
    for task in late:
        if task.state == "failed":
            why = f"task {task.key} has failed: {task.why}"
            return FlowHealth(now, "tasks fail", why, MEND)
    if not late:
        return FlowHealth(now, "creating tasks", "no collect task is planned yet", "wait")
    why = f"task {late[0].key} is {late[0].state}" + (f": {late[0].why}" if late[0].why else "")
    advice = ROOM if late[0].state == "waiting" else "wait"
    return FlowHealth(now, "creating tasks", why, advice)


def _of_discovery(task: TaskRow, *, has_partitions: bool) -> FlowHealth:
    why = f"task {task.key} has failed several times in a row: {task.why}"
    if task.health != "unreachable":
        return FlowHealth("unhealthy supervisor", "discovery fails", why, MEND)
    detail = "lost contact with stream" if has_partitions else "connecting to stream"
    advice = "check that the servers it reads are up and reachable from the task's node"
    return FlowHealth("unhealthy supervisor", detail, why, advice)
