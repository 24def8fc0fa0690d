"""The planner: a pure function from a snapshot to actions. Two laws are tested as properties:
planning after applying yields no action, and every prefix of the actions leaves a legal state.
Plans come before the assignments that are derived from them."""

from __future__ import annotations

from flumeng.control.planner.actions import (
    Action,
    Assign,
    Drop,
    Forget,
    Maintain,
    MarkDown,
    Release,
    Replan,
    Replicate,
    Revert,
    together,
)
from flumeng.control.planner.planner import Planner
from flumeng.control.snapshot.snapshot import Snapshot

__all__ = [
    "Action",
    "Assign",
    "Drop",
    "Forget",
    "Maintain",
    "MarkDown",
    "Planner",
    "Release",
    "Replan",
    "Replicate",
    "Revert",
    "plan",
    "together",
]


def plan(snapshot: Snapshot) -> list[Action]:
    return Planner().plan(snapshot)
