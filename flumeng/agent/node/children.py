"""The state of a node's child processes, and the task statuses they report together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import Any

from flumeng.agent.node.events import Wanted
from flumeng.agent.node.protocol import Message
from flumeng.agent.node.suspects import Suspects
from zkschema.records import COLLECT, DISCOVER, INGEST, REPLICA, AssignedTask, TaskStatus

_WORST_LAST = ("running", "standby", "retrying", "stopped", "starting", "failed")


class State(Enum):
    """``HUNG``: killed after its limit. ``WAITING``: ended by itself; restarted after a
    back-off."""

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    HUNG = "hung"
    WAITING = "waiting"


@dataclass(frozen=True)
class Limits:
    """Seconds of silence before a child counts as hung: until ready, running, and while held."""

    start_seconds: float = 120.0
    silent_seconds: float = 20.0
    held_seconds: float = 300.0


DEFAULT_LIMITS = Limits()
UNLIMITED = Limits(inf, inf, inf)


@dataclass
class Child:
    """``told``, ``answered``: the last configuration sent, and that of the last report. ``kill_at``
    counts while STOPPING or HUNG. ``heard_at``: its last ``alive``; ``held``: its reason for
    waiting since ``held_at``. ``trouble``: why it ended last, until it is ready again.
    ``suspects``: flows whose jobs run one at a time. ``awaited``: journal -> the last ack sent."""

    name: str
    state: State = State.ABSENT
    since: float = 0.0
    backoff_seconds: float = 0.0
    kill_at: float = 0.0
    told: int | None = None
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
    replicas_told: Message | None = None

    @property
    def role(self) -> str:
        return role_of(self.name)

    @property
    def number(self) -> int:
        return number_of(self.name)

    def hang(self, now: float, limits: Limits) -> str:
        """The reason to kill the child; empty without one."""
        silent = now - self.heard_at
        if self.state is State.STARTING and silent > limits.start_seconds:
            return f"hung: not ready after {limits.start_seconds:g} s"
        if self.state is State.RUNNING and silent > limits.silent_seconds:
            return f"hung: nothing heard for {limits.silent_seconds:g} s"
        if self.held and now - self.held_at > limits.held_seconds:
            return f"hung: held for {limits.held_seconds:g} s: {self.held}"
        return ""

    def be_patient(self, seconds: float) -> None:
        """Discounts seconds in which the node itself stood still."""
        self.heard_at += seconds
        self.held_at += seconds

    def forget(self) -> None:
        self.told = self.answered = None
        self.held = self.spark_ui = ""
        self.address, self.tasks, self.journals, self.kept_flows = "", {}, None, ()
        self.awaited = {}
        self.replicas, self.refused, self.replicas_told = {}, {}, None


def names(roles: Iterable[str], workers: int) -> list[str]:
    ingest = [f"{INGEST}.{number}" for number in range(workers)]
    of_role = {INGEST: ingest, REPLICA: ingest[:1], COLLECT: [COLLECT, DISCOVER]}
    return list(dict.fromkeys(name for role in roles for name in of_role[role]))


def role_of(child: str) -> str:
    return child.partition(".")[0]


def number_of(child: str) -> int:
    return int(child.partition(".")[2])


def statuses(children: Iterable[Child], assigned: Iterable[AssignedTask]) -> dict[str, TaskStatus]:
    """The status of each assigned or running task; of several children the worst one counts."""
    said: dict[str, list[TaskStatus]] = {}
    number: dict[str, int] = {}
    trouble: dict[str, str] = {}
    for child in children:
        number[child.role] = number.get(child.role, 0) + 1
        if child.trouble or child.held:
            trouble[child.role] = f"{child.name} {child.trouble or f'waits: {child.held}'}"
        for key, told in child.tasks.items():
            said.setdefault(key, []).append(
                TaskStatus(
                    epoch=told["epoch"],
                    revision=told["revision"],
                    state=told["state"],
                    error=told.get("error"),
                    epoch_seen=told.get("epoch_seen", 0),
                    health=told.get("health", ""),
                )
            )
    wanted = {f"{task.flow}/{task.task}": task for task in assigned if task.state != "draining"}
    for key, task in wanted.items():
        if len(said.get(key, ())) < number.get(task.kind, 1):
            starting = TaskStatus(
                epoch=task.epoch,
                revision=task.revision,
                state="starting",
                error=trouble.get(task.kind),
            )
            said.setdefault(key, []).append(starting)
    return {
        key: _worst(found)
        for key, found in said.items()
        if key in wanted or any(told.state != "stopped" for told in found)
    }


def unreadable(said: Mapping[str, TaskStatus], wanted: Wanted) -> dict[str, TaskStatus]:
    """Tasks whose flow text cannot be read, as failed."""
    return {
        key: replace(said[key], state="failed", error=why)
        for task in wanted.assignment.tasks
        if (key := f"{task.flow}/{task.task}") in said
        and (why := wanted.unreadable.get((task.flow, task.revision))) is not None
    }


def set_aside(
    said: Mapping[str, TaskStatus], assigned: Iterable[AssignedTask], suspects: Suspects
) -> dict[str, TaskStatus]:
    """Tasks of flows that crash the collector, as failed."""
    return {
        key: replace(said[key], state="failed", error=why)
        for task in assigned
        if (key := f"{task.flow}/{task.task}") in said and (why := suspects.why(task)) is not None
    }


def _worst(found: list[TaskStatus]) -> TaskStatus:
    errors = dict.fromkeys(told.error for told in found if told.error)
    return TaskStatus(
        epoch=min(told.epoch for told in found),
        revision=min(told.revision for told in found),
        state=max((told.state for told in found), key=_WORST_LAST.index),
        error="; ".join(errors) or None,
        epoch_seen=max(told.epoch_seen for told in found),
        health=next((told.health for told in found if told.health), ""),
    )
