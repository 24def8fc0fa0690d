"""A node's assignment, as one value and as it lies in ZooKeeper: in one znode while it is small,
else in pages below it.

Whatever changes a page writes the assignment's own znode in the same transaction, so that its
version stands for the whole. A large change is written in steps: each node may learn of its tasks
bit by bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flumeng.store import ABSENT, ANY, Expected, Put, Store, Versioned, Write
from zkschema import paths
from zkschema.records import AssignedTask, Assignment

INLINE_ITEMS = 12_000
"""Tasks and partitions that one znode holds, also when UUIDs are the names of hosts."""
PAGES = 64
STEP_ITEMS = 20_000
"""Tasks and partitions that one transaction certainly carries."""


def read_assignment(store: Store, node: str) -> Versioned[Assignment] | None:
    """What the node should run, with the version of the assignment's own znode.

    Pages that were written while they were read are read again. Raises as ``Store.read``.
    """
    found = store.read(paths.assignment(node))
    while found is not None and found.value.pages:
        numbers = range(found.value.pages)
        pages = store.read_many([paths.assignment_page(node, str(number)) for number in numbers])
        again = store.read(paths.assignment(node))
        if again is not None and again.version == found.version:
            return replace(found, value=whole(found.value, pages))
        found = again
    return found


def whole(assignment: Assignment, pages: Sequence[Versioned[Assignment] | None]) -> Assignment:
    """The assignment with the tasks of its pages, in order."""
    if not assignment.pages:
        return assignment
    tasks = (task for page in pages if page for task in page.value.tasks)
    return replace(assignment, tasks=tuple(sorted(tasks, key=_key)))


def assignment_writes(
    node: str, after: Assignment, before: Assignment, expect: Expected
) -> list[Write]:
    """What replaces the whole assignment ``before``, read at ``expect``, by another one: a step of
    ``assignment_steps``."""
    if not after.pages:
        return [Put(paths.assignment(node), after, expect)]
    old, new = _pages(before.tasks), _pages(after.tasks)
    return [
        Put(paths.assignment(node), replace(after, tasks=()), expect),
        *(
            Put(
                paths.assignment_page(node, str(number)),
                Assignment(tasks=tuple(new[number])),
                ANY if before.pages else ABSENT,
            )
            for number in range(PAGES)
            if not before.pages or old[number] != new[number]
        ),
    ]


def assignment_steps(before: Assignment, after: Assignment) -> Iterator[Assignment]:
    """The assignments on the way, of which each is written in one transaction; ``after`` is last.

    The first step of an assignment that gets its pages writes all that was there as well.
    """
    if items(after.tasks) <= INLINE_ITEMS and not before.pages:
        yield after
        return
    old, new = _pages(before.tasks), _pages(after.tasks)
    room = STEP_ITEMS
    current = dict(enumerate(old))
    changed = [number for number in range(PAGES) if old[number] != new[number]]
    for number in changed:
        size = items(new[number])
        if size > room and room < STEP_ITEMS:
            yield _together(after, current)
            room = STEP_ITEMS
        current[number] = new[number]
        room -= size
    yield replace(after, pages=PAGES)


def items(tasks: Sequence[AssignedTask]) -> int:
    """What counts for the size of an assignment: its tasks and all that they read."""
    return len(tasks) + sum(len(task.partitions) for task in tasks)


def _together(like: Assignment, pages: dict[int, list[AssignedTask]]) -> Assignment:
    tasks = sorted((task for page in pages.values() for task in page), key=_key)
    return replace(like, tasks=tuple(tasks), pages=PAGES)


def _pages(tasks: Sequence[AssignedTask]) -> list[list[AssignedTask]]:
    pages: list[list[AssignedTask]] = [[] for _ in range(PAGES)]
    for task in tasks:
        pages[zlib.crc32(f"{task.flow}/{task.task}".encode()) % PAGES].append(task)
    return pages


def _key(task: AssignedTask) -> tuple[str, str]:
    return task.flow, task.task
