"""Finds the flow that crashes the collector, by the jobs that ran at each crash. Pure.

After a crash the flows with running jobs are suspects: only those that already were, if there are
any. The collector runs the jobs of suspects one at a time. A flow that was a suspect at ``ENDS``
crashes within ``WINDOW_SECONDS``, at the last one alone, is set aside on this node until it has a
higher revision or epoch (``flumeng task restart``), or the node restarts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from zkschema.records import COLLECT, AssignedTask

ENDS = 3
WINDOW_SECONDS = 900.0


@dataclass(frozen=True)
class End:
    """A crash of the collector, caused by one of ``flows``."""

    at: float
    flows: frozenset[str]


@dataclass(frozen=True)
class Aside:
    """A flow whose tasks up to this revision and epoch are not run on this node."""

    revision: int
    epoch: int
    why: str


@dataclass(frozen=True)
class CrashSuspects:
    ends: tuple[End, ...] = ()
    aside: Mapping[str, Aside] = field(default_factory=dict)

    def at(self, now: float) -> frozenset[str]:
        """Return the flows whose jobs run one at a time."""
        return frozenset(
            flow for end in self._recent(now) for flow in end.flows if flow not in self.aside
        )

    def after_end(
        self, now: float, running: Collection[str], tasks: Iterable[AssignedTask], how: str
    ) -> CrashSuspects:
        """Return the suspects after the collector ended while jobs of the flows ``running`` ran."""
        if not running:
            return self
        flows = frozenset(running) & self.at(now) or frozenset(running)
        ends = (*self._recent(now), End(now, flows))
        if len(flows) > 1:
            return CrashSuspects(ends, self.aside)
        (flow,) = flows
        own = [task for task in tasks if task.flow == flow and task.kind == COLLECT]
        times = sum(flow in end.flows for end in ends)
        if times < ENDS or not own:
            return CrashSuspects(ends, self.aside)
        why = (
            f"set aside: the collector {how}; {times} times within {WINDOW_SECONDS / 60:.0f} min "
            f"it ended while it wrote a batch of flow {flow}. Apply another revision of the flow, "
            f"or restart its task with `flumeng task restart {flow}/{own[0].task}`"
        )
        aside = Aside(max(t.revision for t in own), max(t.epoch for t in own), why)
        left = tuple(end for end in ends if flow not in end.flows)
        return CrashSuspects(left, {**self.aside, flow: aside})

    def why(self, task: AssignedTask) -> str | None:
        aside = self.aside.get(task.flow)
        if aside is None or task.kind != COLLECT:
            return None
        held = task.revision <= aside.revision and task.epoch <= aside.epoch
        return aside.why if held else None

    def _recent(self, now: float) -> tuple[End, ...]:
        return tuple(end for end in self.ends if now - end.at <= WINDOW_SECONDS)
