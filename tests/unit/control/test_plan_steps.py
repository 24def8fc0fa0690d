"""Large plans are written in steps, and assignments derive from the plan of each step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.control.planner.actions import Assign, Replan
from flumeng.control.planner.planner import plan
from flumeng.control.planner.steps import steps
from flumeng.control.snapshot.task_map import BUCKETS, Tasks
from flumeng.control.zookeeper import Version
from flumeng.control.zookeeper.transaction import Scale
from tests.unit.control.planning import at_rest, carried_out, cluster, flow, node
from zkschema.records import COLLECT, PlannedTask


def task(number: int, *partitions: str) -> PlannedTask:
    return PlannedTask(
        kind=COLLECT, node="a", epoch=number, state="assigned", partitions=partitions
    )


def test_a_large_change_is_written_in_steps_and_no_partition_is_in_two_tasks() -> None:
    before = Tasks.of({f"collect.{n}": task(n, f"j{n}") for n in range(2000)})
    after = Tasks.of({f"collect.{n}": task(n, f"j{1999 - n}") for n in range(2000)})
    found = steps(before, after, 4_000, lambda _, old, new: 20 * max(len(old), len(new)))
    assert len(found) > 10
    assert found[-1] == after
    for state in found:
        read = [p for t in state.values() for p in t.partitions]
        assert len(read) == len(set(read))
    written = [
        sum(new is not old for old, new in zip(one.buckets, two.buckets, strict=True))
        for one, two in zip([before, *found], found, strict=False)
    ]
    assert max(written) < BUCKETS // 4


@pytest.mark.slow
def test_a_plan_in_steps_is_one_chain_of_versions() -> None:
    scale = Scale(limit_bytes=100_000)
    nodes = [node(f"n{i:03d}") for i in range(100)]
    empty = cluster([flow(tasks=20_000)], nodes, scale=scale)
    parts = [action for action in plan(empty) if isinstance(action, Replan)]
    assert len(parts) > 1
    assert all(scale.fits(part.writes()) for part in parts)
    assert [part.plan.sharing for part in parts] == [True] * (len(parts) - 1) + [False]
    assert [part.version_after for part in parts[:-1]] == [part.expect for part in parts[1:]]
    interrupted = carried_out(empty, [parts[0]])
    assert at_rest(interrupted).flows["f"].tasks.keys() == parts[-1].plan.tasks.keys()


@pytest.mark.long
def test_assignment_with_too_many_flows_for_a_transaction_is_written_in_steps() -> None:
    """The checks of the flows' plans weigh more than the tasks."""
    scale = Scale(chroot_bytes=len("/customers/example-corporation/logs/europe-west-1"))
    flows = [flow(f"team-{n % 40:02}.application-{n:05}.logs", tasks=1) for n in range(10_500)]
    empty = cluster(flows, [node("a")], scale=scale)
    steps_of_a = [action for action in plan(empty) if isinstance(action, Assign)]
    assert len(steps_of_a) > 1
    assert all(scale.fits(action.writes()) for action in steps_of_a)
    assert len(steps_of_a[-1].assignment.tasks) == len(flows)
    checked = [name for action in steps_of_a for name, _ in action.plans]
    assert sorted(checked) == sorted(view.name for view in flows)


def test_every_assignment_checks_the_version_of_its_plan() -> None:
    actions = plan(cluster([flow(tasks=4)], [node("a"), node("b")]))
    assert [type(action) for action in actions] == [Replan, Assign, Assign]
    assert all(
        action.plans == (("f", Version(0)),) for action in actions if isinstance(action, Assign)
    )


def test_task_that_met_a_higher_epoch_gets_one_above_it() -> None:
    """The plan is older than the acks: someone has put back an old one."""
    settled = at_rest(cluster([flow(tasks=2)], [node("a"), node("b")]))
    owner = settled.flows["f"].tasks["collect.0"].node
    assert owner is not None
    view = settled.nodes[owner]
    assert view.status is not None
    said = {
        key: replace(status, state="failed", epoch_seen=30) if key == "f/collect.0" else status
        for key, status in view.status.tasks.items()
    }
    view = replace(view, status=replace(view.status, tasks=said))
    after = carried_out(replace(settled, nodes={**settled.nodes, owner: view}))
    assert after.flows["f"].tasks["collect.0"].epoch == 31
    assert after.flows["f"].tasks["collect.0"].node == owner
    assert after.flows["f"].tasks["collect.1"] == settled.flows["f"].tasks["collect.1"]
    assert plan(after) == []
