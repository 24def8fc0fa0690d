"""Items that are opened ahead, several at once: opening is mostly waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from flumeng.connectors.objects.opened import SMALL_BYTES, Opened
from flumeng.control.snapshot.items import Item
from flumeng.platform.errors import FlumengError

THREADS = 8
GROUPS_AHEAD = 12
GROUP_ITEMS = 16
GROUP_BYTES = 2 * SMALL_BYTES

Open = Callable[[Item], Opened]
Result = Opened | FlumengError


def opened_ahead(
    items: Sequence[Item], open_: Open
) -> Iterator[tuple[Item, Opened | FlumengError]]:
    """Each item in its turn, open, or why it is not. Who takes it closes it."""
    if len(items) <= 1:
        yield from ((item, _result(item, open_)) for item in items)
        return
    groups = _groups(items)
    ahead: deque[tuple[list[Item], Future[list[Result]]]] = deque()
    pool = ThreadPoolExecutor(THREADS, "objects")
    try:
        while True:
            while len(ahead) < GROUPS_AHEAD and (group := next(groups, None)):
                ahead.append((group, pool.submit(_results, group, open_)))
            if not ahead:
                return
            group, done = ahead.popleft()
            yield from zip(group, done.result(), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _groups(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Small ones together: handing one item over would take longer than reading it."""
    group: list[Item] = []
    size = 0
    for item in items:
        size += item.size
        if group and (len(group) == GROUP_ITEMS or size > GROUP_BYTES):
            yield group
            group, size = [], item.size
        group.append(item)
    if group:
        yield group


def _results(group: list[Item], open_: Open) -> list[Result]:
    return [_result(item, open_) for item in group]


def _result(item: Item, open_: Open) -> Result:
    try:
        return open_(item)
    except FlumengError as error:
        return error
