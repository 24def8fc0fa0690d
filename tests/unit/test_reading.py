"""What a master remembers between two looks must not outlive what it is about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng import operations
from flumeng.reading import Reader
from flumeng.store import ANY, tree
from flumeng.testing import FakeStore
from zkschema import paths
from zkschema.bootstrap import flow_folders
from zkschema.records import COLLECT, Plan, PlannedTask

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
    reader = Reader(store, "m", Clock())

    def tasks() -> int:
        place = reader.snapshot().flows["web"].place
        assert place is not None
        return place.collect.tasks

    apply(store, tasks=1)
    assert tasks() == 1
    remove(store)
    apply(store, tasks=3)
    assert tasks() == 3


def test_each_owner_has_its_own_time_to_let_a_task_go(store: FakeStore) -> None:
    clock = Clock()
    reader = Reader(store, "m", clock)
    apply(store, tasks=1)
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="draining")

    def draining_seconds(task: PlannedTask) -> float:
        store.write(paths.plan("web"), Plan(epoch=task.epoch, tasks={"collect.0": task}), ANY)
        return reader.snapshot().draining_seconds["web/collect.0"]

    assert draining_seconds(task) == 0
    clock.now += 7
    assert draining_seconds(task) == 7
    assert draining_seconds(replace(task, node="n2", epoch=2)) == 0
