"""How many tasks take a broken revision, against how many may.

The canary is one collect task. When it is lost (its node goes, it changes nodes, it ends), another
may take its place; once it has ended, in the same plan.
"""

from __future__ import annotations

from collections import Counter

from tests.testkit.simulation.ensemble import Ensemble
from zkschema import paths
from zkschema.records import COLLECT, Flow, Plan, PlannedTask, Revision

CANARY = 1
BROKEN = "filters: [{where: host = 'broken'}]\n"
"""A collect task of a revision with this text fails."""


class Canary:
    """``_taken``: (flow, its creation, revision) -> tasks that have taken it, less those lost."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._taken: Counter[tuple[str, int, int]] = Counter()

    def on_left(self) -> None:
        """A node has gone; any canary may have been there."""
        self._taken.subtract(dict.fromkeys(self._taken, 1))

    def on_plan(self, flow: str, old: Plan, new: Plan) -> str:
        """The violation in the new plan; empty when there is none."""
        znode = self._ensemble.newest(str(paths.flow(flow)))
        if znode is None or not isinstance(znode.value, Flow):
            return ""
        revision = znode.value.revision
        if not self._is_broken(flow, revision):
            return ""
        before, after = _with(old, revision), _with(new, revision)
        key = (flow, znode.created, revision)
        self._taken[key] -= sum(name not in after for name in before)
        self._taken[key] += sum(
            self._is_live(task) for name, task in after.items() if name not in before
        )
        taken = self._taken[key]
        self._taken[key] -= sum(
            name in after and after[name].node != task.node for name, task in before.items()
        )
        if taken > CANARY:
            return f"{flow}: {sorted(after)} are to run revision {revision}, which is broken"
        return ""

    def _is_live(self, task: PlannedTask) -> bool:
        """A node that has gone since the master looked has lost the canary at once."""
        return self._ensemble.newest(str(paths.live_node(task.node or "nobody"))) is not None

    def _is_broken(self, flow: str, revision: int) -> bool:
        znode = self._ensemble.newest(str(paths.revision(flow, str(revision))))
        return (
            znode is not None and isinstance(znode.value, Revision) and BROKEN in znode.value.text
        )


def _with(plan: Plan, revision: int) -> dict[str, PlannedTask]:
    """The collect tasks that are to run the revision by name."""
    return {
        name: task
        for name, task in plan.tasks.items()
        if task.kind == COLLECT and task.revision == revision
    }
