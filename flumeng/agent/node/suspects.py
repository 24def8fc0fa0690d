"""Which flow takes its collector down, told from what ran whenever it went. Pure.

All flows of a node share one collector. One end says little: every flow that had a job running may
have caused it. From then on those are suspects, and the collector runs their jobs one at a time and
apart from all others, so that each further end has one suspect that was running. A flow that was
the only one at an end, and was among those at ``ENDS`` of them within ``WINDOW_SECONDS``, is set
aside: its tasks run no more on this node, and the others go on. It comes back with another revision
or under a higher epoch (``flumeng task restart``), and when the node starts anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from zkschema.records import COLLECT, AssignedTask

ENDS = 3
WINDOW_SECONDS = 900.0


@dataclass(frozen=True)
class End:
    """The collector ended ``at`` that time, and one of ``flows`` may have caused it."""

    at: float
    flows: frozenset[str]


@dataclass(frozen=True)
class Aside:
    """A flow is set aside: its tasks of this ``revision``, up to this ``epoch``."""

    revision: int
    epoch: int
    why: str


@dataclass(frozen=True)
class Suspects:
    """``ends`` within the window, and which flows are set ``aside``. Times only grow."""

    ends: tuple[End, ...] = ()
    aside: Mapping[str, Aside] = field(default_factory=dict)

    def at(self, now: float) -> frozenset[str]:
        """The flows whose jobs are to run one at a time."""
        return frozenset(
            flow for end in self._recent(now) for flow in end.flows if flow not in self.aside
        )

    def after_end(
        self, now: float, running: Collection[str], tasks: Iterable[AssignedTask], how: str
    ) -> Suspects:
        """After the collector has ended while jobs of ``running`` ran; ``tasks`` are assigned."""
        if not running:
            return self
        flows = frozenset(running) & self.at(now) or frozenset(running)
        ends = (*self._recent(now), End(now, flows))
        if len(flows) > 1:
            return Suspects(ends, self.aside)
        (flow,) = flows
        own = [task for task in tasks if task.flow == flow and task.kind == COLLECT]
        times = sum(flow in end.flows for end in ends)
        if times < ENDS or not own:
            return Suspects(ends, self.aside)
        why = (
            f"set aside: the collector {how}; {times} times within {WINDOW_SECONDS / 60:.0f} min "
            f"it ended while a batch of {flow} was written. Apply another revision, or begin it "
            f"anew with `flumeng task restart {flow}/{own[0].task}`"
        )
        aside = Aside(max(t.revision for t in own), max(t.epoch for t in own), why)
        left = tuple(end for end in ends if flow not in end.flows)
        return Suspects(left, {**self.aside, flow: aside})

    def why(self, task: AssignedTask) -> str | None:
        """Why the task is set aside; None when it is not."""
        aside = self.aside.get(task.flow)
        if aside is None or task.kind != COLLECT:
            return None
        held = task.revision <= aside.revision and task.epoch <= aside.epoch
        return aside.why if held else None

    def _recent(self, now: float) -> tuple[End, ...]:
        return tuple(end for end in self.ends if now - end.at <= WINDOW_SECONDS)
