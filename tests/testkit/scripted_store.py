"""A store that records its requests, and lets a test fail them or do something meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from flumeng.control.zookeeper import Check, Found, Path, Put, Remove, Version, Write
from tests.testkit.store import FakeStore, FakeTree
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)
Hook = Callable[[Sequence[Any]], object]
"""Gets the paths that are read, or the writes of a transaction. What it raises fails the request:
before it nothing is done, after it only the answer is lost."""
Condition = Callable[[Sequence[Any]], bool]


def nothing(_request: Sequence[Any]) -> None:
    """A hook that does nothing."""


class ScriptedStore(FakeStore):
    """Records each request when it is made, and calls its hooks before and after it."""

    def __init__(
        self,
        shared: FakeTree | None = None,
        *,
        before_read: Hook = nothing,
        after_read: Hook = nothing,
        before_commit: Hook = nothing,
        after_commit: Hook = nothing,
    ) -> None:
        super().__init__(shared)
        self.before_read, self.after_read = before_read, after_read
        self.before_commit, self.after_commit = before_commit, after_commit
        self.reads: list[Sequence[ZPath[Any]]] = []
        self.listings: list[Sequence[Path]] = []
        self.transactions: list[Sequence[Write]] = []

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        self.reads.append(wanted)
        self.before_read(wanted)
        records = super().read_each(wanted)
        self.after_read(wanted)
        return records

    def children(self, path: Path) -> list[str]:
        return self.children_many([path])[0]

    def children_many(self, wanted: Sequence[Path]) -> list[list[str]]:
        self.listings.append(wanted)
        return [super(ScriptedStore, self).children(path) for path in wanted]

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self.transactions.append(writes)
        self.before_commit(writes)
        versions = super().commit(writes)
        self.after_commit(writes)
        return versions


def always(_request: Sequence[Any]) -> bool:
    return True


def concerns(*where: object) -> Condition:
    """Whether a request reads or writes one of these paths, or a path of one of these rows."""

    def holds(request: Sequence[Any]) -> bool:
        writes = Put, Remove, Check
        touched = [item.path if isinstance(item, writes) else item for item in request]
        return any(path == one or path.row is one for path in touched for one in where)

    return holds


def puts(*where: object) -> Condition:
    """Whether a transaction puts one of these paths, or a path of one of these rows."""
    holds = concerns(*where)
    return lambda writes: holds([write for write in writes if isinstance(write, Put)])


def removes(writes: Sequence[Write]) -> bool:
    """Whether a transaction removes anything."""
    return any(isinstance(write, Remove) for write in writes)


def checks(writes: Sequence[Write]) -> bool:
    """Whether a transaction checks the version of anything."""
    return any(isinstance(write, Check) for write in writes)


def once(action: Callable[[], object], when: Condition = always) -> Hook:
    """A hook that calls ``action`` at the first request for which ``when`` holds."""
    return at(1, action, when)


def at(number: int, action: Callable[[], object], when: Condition = always) -> Hook:
    """A hook that calls ``action`` at that request, from 1, of those for which ``when`` holds."""
    numbers = count(1)

    def hook(request: Sequence[Any]) -> None:
        if when(request) and next(numbers) == number:
            action()

    return hook


def fail(error: Exception, when: Condition = always) -> Hook:
    """A hook that fails each request for which ``when`` holds."""

    def hook(request: Sequence[Any]) -> None:
        if when(request):
            raise error

    return hook


def fail_at(number: int, error: Exception, when: Condition = always) -> Hook:
    """A hook that fails that request, from 1, of those for which ``when`` holds."""

    def action() -> None:
        raise error

    return at(number, action, when)


def fail_from(number: int, error: Exception) -> Hook:
    """A hook that fails that request, from 1, and all after it."""
    requests = count(1)

    def hook(_request: Sequence[Any]) -> None:
        if next(requests) >= number:
            raise error

    return hook
