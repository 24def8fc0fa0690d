"""A node's assignment: one znode until too large, from then on pages (see ``shards``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from flumeng.control.snapshot import shards
from flumeng.control.zookeeper import Expected, Put, ReadableStore, Versioned, Write
from flumeng.control.zookeeper.transaction import first_that_fit
from zkschema import paths
from zkschema.records import AssignedTask, Assignment

INLINE_ITEMS = 12_000
"""The most tasks plus partitions in one znode; so many fit even if host names are UUIDs."""
PAGES = 64

Fits = Callable[[Assignment, Assignment], bool]
"""Returns whether one transaction can change the first assignment into the second."""


def read_assignment(store: ReadableStore, node: str) -> Versioned[Assignment] | None:
    """Return the assignment with its main znode's version; reads again if it changes meanwhile."""
    record = store.read(paths.assignment(node))
    while record is not None and record.value.pages:
        numbers = range(record.value.pages)
        pages = store.read_many([paths.assignment_page(node, str(number)) for number in numbers])
        again = store.read(paths.assignment(node))
        if again is not None and again.version == record.version:
            return replace(record, value=whole(record.value, pages))
        record = again
    return record


def whole(assignment: Assignment, pages: Sequence[Versioned[Assignment] | None]) -> Assignment:
    if not assignment.pages:
        return assignment
    tasks = (task for page in pages if page for task in page.value.tasks)
    return replace(assignment, tasks=tuple(sorted(tasks, key=_key)))


def assignment_writes(
    node: str, after: Assignment, before: Assignment, expect: Expected
) -> list[Write]:
    """Return the writes of one step, from ``before`` at version ``expect`` to ``after``."""
    if not after.pages:
        return [Put(paths.assignment(node), after, expect)]
    old, new = _pages(before.tasks) if before.pages else (), _pages(after.tasks)
    return [
        Put(paths.assignment(node), replace(after, tasks=()), expect),
        *shards.shard_writes(
            partial(paths.assignment_page, node),
            lambda page: Assignment(tasks=tuple(page.values())),
            old,
            new,
        ),
    ]


def assignment_steps(before: Assignment, after: Assignment, fits: Fits) -> Iterator[Assignment]:
    """Yield the assignments to write, one a transaction; ``after``, perhaps in pages, is last."""
    if not before.pages and items(after.tasks) <= INLINE_ITEMS and fits(before, after):
        yield after
        return
    after = replace(after, pages=PAGES)
    current = before
    if not before.pages and not fits(before, after):
        current = replace(after, tasks=tuple(sorted(before.tasks, key=_key)))
        yield current
    left = shards.changed(_pages(current.tasks), _pages(after.tasks))
    while left:
        portion = first_that_fit(left, _fitting(current, after, fits))
        current = _with_pages(current, after, portion)
        left = left[len(portion) :]
        if left:
            yield current
    yield after


def _fitting(current: Assignment, after: Assignment, fits: Fits) -> Callable[[Sequence[int]], bool]:
    return lambda numbers: fits(current, _with_pages(current, after, numbers))


def items(tasks: Sequence[AssignedTask]) -> int:
    """Return the size of an assignment: the number of its tasks and their partitions."""
    return len(tasks) + sum(len(task.partitions) for task in tasks)


def _with_pages(current: Assignment, after: Assignment, numbers: Sequence[int]) -> Assignment:
    pages, target = _pages(current.tasks), _pages(after.tasks)
    for number in numbers:
        pages[number] = target[number]
    tasks = (task for page in pages for task in page.values())
    return replace(after, tasks=tuple(sorted(tasks, key=_key)))


def _pages(tasks: Sequence[AssignedTask]) -> list[dict[str, AssignedTask]]:
    return shards.split({f"{task.flow}/{task.task}": task for task in tasks}, PAGES)


def _key(task: AssignedTask) -> tuple[str, str]:
    return task.flow, task.task
