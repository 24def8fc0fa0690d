"""A node's children as its machine sees them: the state of each, and what all of them say together.

Pure. A node has any number of ingest workers, ``ingest.0`` and so on, and at most one collector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from zkschema.records import INGEST, AssignedTask, TaskStatus

_WORST_LAST = ("running", "stopped", "starting", "failed")


class State(Enum):
    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"


@dataclass
class Child:
    """``tasks`` and ``journals`` are what it said last, ``answered`` the configuration that it said
    it for, ``told`` the last that it was sent; ``kill_at`` counts while STOPPING."""

    name: str
    state: State = State.ABSENT
    since: float = 0.0
    backoff_seconds: float = 0.0
    kill_at: float = 0.0
    told: int | None = None
    answered: int | None = None
    address: str = ""
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    journals: Mapping[str, Mapping[str, Any]] | None = None
    kept_flows: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        return role_of(self.name)

    @property
    def number(self) -> int:
        """Which of the ingest workers it is."""
        return number_of(self.name)

    def forget(self) -> None:
        self.told = self.answered = None
        self.address, self.tasks, self.journals, self.kept_flows = "", {}, None, ()


def names(roles: Iterable[str], workers: int) -> list[str]:
    """What the children of a node are called."""
    ingest = [f"{INGEST}.{number}" for number in range(workers)]
    return [name for role in roles for name in (ingest if role == INGEST else [role])]


def role_of(child: str) -> str:
    return child.partition(".")[0]


def number_of(child: str) -> int:
    """Of the ingest worker of that name."""
    return int(child.partition(".")[2])


def statuses(children: Iterable[Child], assigned: Iterable[AssignedTask]) -> dict[str, TaskStatus]:
    """The tasks that are assigned or still run, each as the child has it that is worst off."""
    said: dict[str, list[TaskStatus]] = {}
    number: dict[str, int] = {}
    for child in children:
        number[child.role] = number.get(child.role, 0) + 1
        for key, told in child.tasks.items():
            said.setdefault(key, []).append(
                TaskStatus(
                    epoch=told["epoch"],
                    revision=told["revision"],
                    state=told["state"],
                    error=told.get("error"),
                )
            )
    wanted = {f"{task.flow}/{task.task}": task for task in assigned if task.state != "draining"}
    for key, task in wanted.items():
        if len(said.get(key, ())) < number.get(task.kind, 1):
            starting = TaskStatus(epoch=task.epoch, revision=task.revision, state="starting")
            said.setdefault(key, []).append(starting)
    return {
        key: _worst(found)
        for key, found in said.items()
        if key in wanted or any(told.state != "stopped" for told in found)
    }


def _worst(found: list[TaskStatus]) -> TaskStatus:
    errors = dict.fromkeys(told.error for told in found if told.error)
    return TaskStatus(
        epoch=min(told.epoch for told in found),
        revision=min(told.revision for told in found),
        state=max((told.state for told in found), key=_WORST_LAST.index),
        error="; ".join(errors) or None,
    )
