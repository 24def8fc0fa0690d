"""A simulated cluster counts the tasks that take a broken revision."""

from __future__ import annotations

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import tree
from tests.testkit.cluster import come_live
from tests.testkit.simulation.canary import BROKEN, Canary
from tests.testkit.simulation.ensemble import Ensemble
from tests.testkit.simulation.session import Session
from zkschema.records import COLLECT, Plan, PlannedTask

TEXT = f"flow: f\nsources: [syslog: {{listen: '127.0.0.1:5514'}}]\nsinks: [noop: {{}}]\n{BROKEN}"


@pytest.fixture
def canary() -> Canary:
    ensemble = Ensemble()
    store = Session(ensemble)
    tree.init(store)
    apply_flow(Operator(store, "a", "", 0.0), TEXT)
    for node in ("n0", "n1"):
        come_live(store, node)
    return Canary(ensemble)


def plan(**tasks: tuple[str, int]) -> Plan:
    """Collect tasks, each with its node and revision."""
    return Plan(
        tasks={
            name: PlannedTask(kind=COLLECT, node=node, epoch=1, state="assigned", revision=revision)
            for name, (node, revision) in tasks.items()
        }
    )


OLD = plan(a=("n0", 0), b=("n1", 0))
FIRST = plan(a=("n0", 1), b=("n1", 0))


def test_plan_that_ends_the_canary_may_move_another_task_to_the_revision(canary: Canary) -> None:
    """A suspended flow ends its canary while another task is still to finish its batch."""
    assert not canary.on_plan("f", OLD, FIRST)
    assert not canary.on_plan("f", FIRST, plan(b=("n1", 1)))


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_no_other_task_may_take_the_revision_beside_the_canary(canary: Canary, node: str) -> None:
    assert not canary.on_plan("f", OLD, FIRST)
    assert "broken" in canary.on_plan("f", FIRST, plan(a=(node, 1), b=("n1", 1)))


def test_ended_canary_has_at_most_one_successor(canary: Canary) -> None:
    three = plan(a=("n0", 1), b=("n1", 0), c=("n1", 0))
    assert not canary.on_plan("f", plan(a=("n0", 0), b=("n1", 0), c=("n1", 0)), three)
    assert "broken" in canary.on_plan("f", three, plan(b=("n1", 1), c=("n1", 1)))
