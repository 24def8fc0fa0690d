"""Every plan within the limits of flows can be written: each znode and each transaction is small
enough, for any names and sizes of the tasks and their journals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.control.planner.steps import steps
from flumeng.control.planner.task_count import PARTITIONS_AT_MOST, task_count
from flumeng.control.snapshot.assignment_pages import PAGES, assignment_steps, assignment_writes
from flumeng.control.snapshot.task_map import Bucket, Tasks, next_version, plan_writes
from flumeng.control.zookeeper import ABSENT, ANY, Put
from flumeng.control.zookeeper.transaction import Scale
from zkschema import paths
from zkschema.records import COLLECT, INGEST, AssignedTask, Assignment, Plan, PlannedTask

SCALE = Scale()
ROOM_BYTES = SCALE.limit_bytes - 1000


def bucket_bytes(number: int, _before: Bucket, after: Bucket) -> int:
    path = paths.plan_bucket("web-logs", str(number))
    return SCALE.weigh(Put(path, Plan(tasks=after), ABSENT))


def names(chance: random.Random, count: int, host: str) -> tuple[str, ...]:
    return tuple(
        f"web-logs.{host}-{chance.randrange(10**5)}.0.{chance.getrandbits(32):08x}"
        for _ in range(count)
    )


@pytest.mark.slow
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from([0, 1, 30, 2000, PARTITIONS_AT_MOST]), min_size=1, max_size=12),
    st.sampled_from([0, 3, 600, 2000]),
    st.sampled_from(["n", "a-very-long-name-of-a-host-in-some-cloud-" * 2]),
)
@settings(max_examples=25, deadline=None)
def test_any_plan_fits_into_its_znodes(seed: int, sizes: list[int], ingest: int, host: str) -> None:
    chance = random.Random(seed)
    tasks = {
        f"{COLLECT}.{number}": PlannedTask(
            kind=COLLECT, node="n", epoch=1, state="assigned", partitions=names(chance, size, host)
        )
        for number, size in enumerate(sizes)
    }
    for number in range(ingest):
        tasks[f"{INGEST}.n{number}"] = PlannedTask(
            kind=INGEST, node=f"n{number}", epoch=number, state="assigned"
        )
    before, expect = Tasks(), ABSENT
    for step in steps(before, Tasks().changed(tasks), ROOM_BYTES, bucket_bytes):
        writes = plan_writes("web-logs", Plan(epoch=1, tasks=step), before, expect)
        assert SCALE.fits(writes)
        before, expect = step, next_version(expect)  # type: ignore[assignment]
    assert dict(before) == tasks


@pytest.mark.slow
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from([0, 10, 900, PARTITIONS_AT_MOST]), max_size=40),
    st.lists(st.sampled_from([0, 10, 900, PARTITIONS_AT_MOST]), max_size=40),
)
@settings(max_examples=25, deadline=None)
def test_any_assignment_fits_into_its_znodes(seed: int, old: list[int], new: list[int]) -> None:
    chance = random.Random(seed)
    told, expect = Assignment(), ABSENT
    for sizes in (old, new):
        after = Assignment(
            tasks=tuple(
                AssignedTask(
                    flow="web-logs",
                    task=f"{COLLECT}.{number:02}",
                    kind=COLLECT,
                    epoch=1,
                    revision=1,
                    state="running",
                    partitions=names(chance, size, "ip-10-7.some-zone.compute.internal"),
                )
                for number, size in enumerate(sizes)
            ),
            pages=told.pages,
        )

        def fits(one: Assignment, two: Assignment) -> bool:
            return SCALE.fits(assignment_writes("n", two, one, ANY))

        for step in assignment_steps(told, after, fits):
            assert fits(told, step)
            told, expect = step, next_version(expect)  # type: ignore[assignment]
        assert told.tasks == after.tasks
        assert told.pages in (0, PAGES)


@given(
    st.one_of(st.none(), st.integers(1, 40)),
    st.integers(0, 60),
    st.integers(0, 100_000),
    st.floats(0, 200_000),
    st.integers(0, 50),
)
def test_number_of_tasks_is_stable_at_once(
    wanted: int | None, planned: int, journals: int, slots: float, nodes: int
) -> None:
    count = task_count(wanted, planned, journals, slots, nodes)
    assert count >= (wanted or 1)
    assert count * PARTITIONS_AT_MOST >= journals
    assert task_count(wanted, count, journals, slots, nodes) == count


def test_joining_and_leaving_nodes_and_journals_keep_the_number_of_tasks() -> None:
    count = task_count(None, 0, 400, 400.0, 20)
    assert count == 20
    assert {task_count(None, count, n, float(n), 20) for n in range(100, 600)} == {20}
    assert {task_count(None, count, 400, 400.0, n) for n in range(40)} == {20}
    assert task_count(None, count, 640, 640.0, 40) == 40
    assert task_count(None, count, 80, 80.0, 20) == 5
