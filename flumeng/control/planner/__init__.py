"""The planner: from a snapshot to actions, pure.

No I/O, clock, randomness or logging. Two laws hold and are tested as properties: planning again
after the actions were applied gives nothing, and every prefix of the actions leaves a legal state.
Plans come before the assignments that derive from them.
"""

from __future__ import annotations

from flumeng.control.planner.actions import (
    Action,
    Assign,
    Drop,
    Forget,
    Maintain,
    MarkAway,
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
    "MarkAway",
    "Planner",
    "Release",
    "Replan",
    "Replicate",
    "Revert",
    "plan",
    "together",
]


def plan(snapshot: Snapshot) -> list[Action]:
    """What a planner without memory decides."""
    return Planner().plan(snapshot)
