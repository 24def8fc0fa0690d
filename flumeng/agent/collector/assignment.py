"""What a node wants of a task."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Assignment:
    """``draining``: let go of it after the running batches.
    ``standby``: another node owns it, and it is to be ready here. Another ``handoff`` is no other
    assignment: what has come is to be delivered at once."""

    flow: str
    task: str
    epoch: int
    revision: int
    spec: str
    partitions: tuple[str, ...]
    draining: bool = False
    handoff: int = field(default=0, compare=False)
    standby: bool = False

    @property
    def key(self) -> str:
        return f"{self.flow}/{self.task}"
