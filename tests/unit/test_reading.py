"""What a master reads is of one moment, and what it remembers does not outlive what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from flumeng import operations
from flumeng.reading import WATCHED, Reader
from flumeng.store import ABSENT, ANY, Versioned, tree
from flumeng.testing import FakeStore
from zkschema import paths
from zkschema.bootstrap import flow_folders
from zkschema.records import COLLECT, Cluster, LiveNode, Node, Plan, PlannedTask, Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)
LIVE = LiveNode(uuid="u", incarnation="i", pid=1, version="0", since=0.0)
FLOW = """
flow: web
sources: [{{syslog: {{listen: "127.0.0.1:5514"}}}}]
place: {{collect: {{tasks: {tasks}}}}}
sinks: [{{noop: {{}}}}]
"""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    tree.init(store)
    return store


def apply(store: FakeStore, tasks: int) -> None:
    operations.apply_flow(store, FLOW.format(tasks=tasks), author="a", reason="", now=0.0)


def remove(store: FakeStore) -> None:
    store.remove(paths.revision("web", "1"), ANY)
    for folder in reversed(flow_folders("web")):
        store.remove(folder, ANY)
    store.remove(paths.flow("web"), ANY)


def test_a_flow_that_is_made_again_has_another_revision_1(store: FakeStore) -> None:
    clock = Clock()
    reader = Reader(store, "m", clock, clock)

    def tasks() -> int:
        reader.hear(str(paths.flows()))
        place = reader.snapshot().flows["web"].place
        assert place is not None
        return place.collect.tasks

    apply(store, tasks=1)
    assert tasks() == 1
    remove(store)
    apply(store, tasks=3)
    assert tasks() == 3


def test_who_joins_while_a_master_reads_is_not_gone(store: FakeStore) -> None:
    """It is given a task by another master between the look at who lives and that at the plan."""
    apply(store, tasks=1)
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="assigned")

    class Interrupted(FakeStore):
        joined = False

        def read_many(self, wanted: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
            if not self.joined:
                self.joined = True
                store.write(paths.node("n1"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
                store.write(paths.live_node("n1"), LIVE, ABSENT)
                store.write(paths.plan("web"), Plan(epoch=1, tasks={"collect.0": task}), ANY)
            return super().read_many(wanted)

    interrupted = Interrupted(store.tree)
    reader = Reader(interrupted, "m", Clock(), Clock())
    for top in WATCHED:
        interrupted.watch(top, reader.hear)
    snapshot = reader.snapshot()
    assert snapshot.flows["web"].tasks["collect.0"].node == "n1"
    assert snapshot.nodes["n1"].live


def test_each_owner_has_its_own_time_to_let_a_task_go(store: FakeStore) -> None:
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    apply(store, tasks=1)
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="draining")

    def overdue(task: PlannedTask) -> bool:
        store.write(paths.plan("web"), Plan(epoch=task.epoch, tasks={"collect.0": task}), ANY)
        reader.hear(str(paths.plan("web")))
        return "web/collect.0" in reader.snapshot().overdue

    assert not overdue(task)
    clock.now += Cluster().drain_limit_seconds
    assert overdue(task)
    assert not overdue(replace(task, node="n2", epoch=2))
