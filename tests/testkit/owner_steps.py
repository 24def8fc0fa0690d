"""Helpers for tests of crashes: each step of an owner, on ZooKeeper or a target, is counted.

It can be cut off, or overtaken by its successor, before and after any of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flumeng.control.zookeeper import Expected, Remove, Version, Write
from tests.testkit.store import FakeStore, FakeTree


class CrashError(BaseException):
    """The process dies here. Product code must not catch this."""


@dataclass
class Steps:
    """Calls ``act`` at step number ``at``; each operation has one before it and one after."""

    at: int = -1
    act: Callable[[], None] = lambda: None
    count: int = 0
    names: list[str] = field(default_factory=list)

    def step(self, name: str) -> None:
        self.count += 1
        self.names.append(name)
        if self.count - 1 == self.at:
            self.act()


class SteppingStore(FakeStore):
    def __init__(self, shared: FakeTree, steps: Steps) -> None:
        super().__init__(shared)
        self._steps = steps

    def read_many(self, wanted: Sequence[Any]) -> list[Any]:
        self._steps.step("before read")
        return super().read_many(wanted)

    def children(self, path: Any) -> list[str]:
        self._steps.step("before children")
        return super().children(path)

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self._steps.step("before commit")
        versions = super().commit(writes)
        self._steps.step("after commit")
        return versions

    def remove(self, path: Any, expect: Expected) -> None:
        self.commit([Remove(path, expect)])


@dataclass
class Watched(Steps):
    watch: Callable[[Steps, str], None] = field(kw_only=True)

    def step(self, name: str) -> None:
        self.names.append(name)
        self.watch(self, name)


class Baton:
    """Lets one thread run at a time, and hands over at random."""

    def __init__(self, chance: random.Random, owners: int) -> None:
        self._chance = chance
        self._there = set(range(owners))
        self._passed = threading.Condition()
        self._holder = chance.randrange(owners)

    def take_turn(self, number: int) -> None:
        with self._passed:
            self._passed.wait_for(lambda: self._holder == number)
            if self._chance.random() < 0.01:
                raise CrashError
            self._holder = self._chance.choice(sorted(self._there))
            self._passed.notify_all()
            self._passed.wait_for(lambda: self._holder == number)

    def leave(self, number: int) -> None:
        with self._passed:
            self._there.discard(number)
            if self._there and self._holder == number:
                self._holder = self._chance.choice(sorted(self._there))
            self._passed.notify_all()


@dataclass
class TurnTaking(Steps):
    baton: Baton = field(kw_only=True)
    number: int = field(kw_only=True)

    def step(self, _name: str) -> None:
        self.baton.take_turn(self.number)


def crash() -> None:
    raise CrashError
