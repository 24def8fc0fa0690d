"""The state of a node's child processes, and the task statuses they report together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import Any

from flumeng.agent.node.crash_suspects import CrashSuspects
from flumeng.agent.node.events import Assigned
from flumeng.agent.node.protocol import Message
from zkschema.records import COLLECT, DISCOVER, GATEWAY, INGEST, REPLICA, AssignedTask, TaskStatus

_WORST_LAST = ("running", "standby", "retrying", "stopped", "starting", "failed")


class State(Enum):
    """The state of a child. ``HUNG``: killed after its time limit, or for outdated settings at its
    start. ``WAITING``: ended unasked; restarted after a back-off."""

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    HUNG = "hung"
    WAITING = "waiting"


@dataclass(frozen=True)
class Limits:
    """Seconds after which a child is hung: silent while it starts or runs, or held by one wait."""

    start_seconds: float = 120.0
    silent_seconds: float = 20.0
    held_seconds: float = 300.0


DEFAULT_LIMITS = Limits()
UNLIMITED = Limits(inf, inf, inf)


@dataclass
class Child:
    """The state of a child process. ``sent``, ``answered``: numbers of the last configuration sent
    and reported. ``kill_at``: the time limit while STOPPING or HUNG. ``heard_at``: its last
    ``alive``; ``held``: its reason for waiting since ``held_at``. ``trouble``: why it last ended,
    until ready. ``suspects``: flows whose jobs run one at a time. ``awaited``: by journal with
    waiting senders, the last ack sent."""

    name: str
    state: State = State.ABSENT
    since: float = 0.0
    backoff_seconds: float = 0.0
    kill_at: float = 0.0
    sent: int | None = None
    answered: int | None = None
    address: str = ""
    spark_ui: str = ""
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    journals: Mapping[str, Mapping[str, Any]] | None = None
    kept_flows: tuple[str, ...] = ()
    heard_at: float = 0.0
    held: str = ""
    held_at: float = 0.0
    trouble: str = ""
    starts: int = 0
    hangs: int = 0
    suspects: frozenset[str] = frozenset()
    spark: Mapping[str, str] = field(default_factory=dict)
    awaited: dict[str, int] = field(default_factory=dict)
    replicas: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    replicas_sent: Message | None = None

    @property
    def role(self) -> str:
        return role_of(self.name)

    @property
    def number(self) -> int:
        return number_of(self.name)

    def hang(self, now: float, limits: Limits) -> str:
        """Return the reason to kill the child, or ""."""
        silent = now - self.heard_at
        if self.state is State.STARTING and silent > limits.start_seconds:
            return f"hung: not ready, and no message for {limits.start_seconds:g} s"
        if self.state is State.RUNNING and silent > limits.silent_seconds:
            return f"hung: no message for {limits.silent_seconds:g} s"
        if self.held and now - self.held_at > limits.held_seconds:
            return f"hung: it could not work for {limits.held_seconds:g} s: {self.held}"
        return ""

    def be_patient(self, seconds: float) -> None:
        """Extend the child's time limits by a pause of the node itself."""
        self.heard_at += seconds
        self.held_at += seconds
        self.kill_at += seconds

    def forget(self) -> None:
        self.sent = self.answered = None
        self.held = self.spark_ui = ""
        self.address, self.tasks, self.journals, self.kept_flows = "", {}, None, ()
        self.awaited = {}
        self.replicas, self.refused, self.replicas_sent = {}, {}, None


def names(roles: Iterable[str], workers: int) -> list[str]:
    ingest = [f"{INGEST}.{number}" for number in range(workers)]
    of_role = {
        INGEST: ingest,
        REPLICA: ingest[:1],
        COLLECT: [COLLECT, DISCOVER],
        GATEWAY: [GATEWAY],
    }
    return list(dict.fromkeys(name for role in roles for name in of_role[role]))


def role_of(child: str) -> str:
    return child.partition(".")[0]


def number_of(child: str) -> int:
    return int(child.partition(".")[2])


def statuses(children: Iterable[Child], assigned: Iterable[AssignedTask]) -> dict[str, TaskStatus]:
    """Return the status of each assigned or running task: of several children's, the worst."""
    reported: dict[str, list[TaskStatus]] = {}
    number: dict[str, int] = {}
    trouble: dict[str, str] = {}
    for child in children:
        number[child.role] = number.get(child.role, 0) + 1
        if child.trouble or child.held:
            trouble[child.role] = f"{child.name} {child.trouble or f'waits: {child.held}'}"
        for key, report in child.tasks.items():
            reported.setdefault(key, []).append(
                TaskStatus(
                    epoch=report["epoch"],
                    revision=report["revision"],
                    state=report["state"],
                    error=report.get("error"),
                    epoch_seen=report.get("epoch_seen", 0),
                    health=report.get("health", ""),
                )
            )
    expected = {f"{task.flow}/{task.task}": task for task in assigned if task.state != "draining"}
    for key, task in expected.items():
        if len(reported.get(key, ())) < number.get(task.kind, 1):
            starting = TaskStatus(
                epoch=task.epoch,
                revision=task.revision,
                state="starting",
                error=trouble.get(task.kind),
            )
            reported.setdefault(key, []).append(starting)
    return {
        key: _worst(reports)
        for key, reports in reported.items()
        if key in expected or any(report.state != "stopped" for report in reports)
    }


def unreadable(statuses: Mapping[str, TaskStatus], assigned: Assigned) -> dict[str, TaskStatus]:
    """Return the tasks whose flow text cannot be read, with the state failed."""
    return {
        key: replace(statuses[key], state="failed", error=why)
        for task in assigned.assignment.tasks
        if (key := f"{task.flow}/{task.task}") in statuses
        and (why := assigned.unreadable.get((task.flow, task.revision))) is not None
    }


def set_aside(
    states: Mapping[str, TaskStatus], assigned: Iterable[AssignedTask], suspects: CrashSuspects
) -> dict[str, TaskStatus]:
    """Return the tasks of flows that crash the collector, with the state failed."""
    return {
        key: replace(states[key], state="failed", error=why)
        for task in assigned
        if (key := f"{task.flow}/{task.task}") in states and (why := suspects.why(task)) is not None
    }


def _worst(reports: list[TaskStatus]) -> TaskStatus:
    errors = dict.fromkeys(report.error for report in reports if report.error)
    return TaskStatus(
        epoch=min(report.epoch for report in reports),
        revision=min(report.revision for report in reports),
        state=max((report.state for report in reports), key=_WORST_LAST.index),
        error="; ".join(errors) or None,
        epoch_seen=max(report.epoch_seen for report in reports),
        health=next((report.health for report in reports if report.health), ""),
    )
