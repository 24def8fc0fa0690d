"""Copies of a data directory, and processes that end between any two of their writes.

Each start is four steps: read the disk, read ZooKeeper, write the disk, write ZooKeeper. A process
may end, or its directory be copied, between any of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)

from flumeng.agent.node.claim import Claim, SupplantedError, next_claim, require_own


class Directory:
    """``held``: all claims that it ever had on disk, also before it was copied.

    A copy made while a process works under a claim is as good as one made before.
    """

    def __init__(self, claim: Claim, held: frozenset[Claim] = frozenset()) -> None:
        self.claim = claim
        self.held = held
        self.process: Process | None = None


class Process:
    """``holds`` is the claim of its work, or one written without an answer; it reads the claim
    again in each step."""

    def __init__(self, world: World, directory: Directory, token: str) -> None:
        self.world, self.directory, self.token = world, directory, token
        self.holds: Claim | None = None
        self.refused = False
        self._steps = self._run()

    def step(self) -> None:
        if not self.refused:
            next(self._steps, None)

    def _run(self) -> Iterator[None]:
        while True:
            try:
                yield from self._start()
                while self.holds is not None and require_own(self.holds, self.world.known):
                    yield
                self.holds = None
            except SupplantedError:
                self.holds, self.refused = None, True
                return

    def _start(self) -> Iterator[None]:
        disk = self.directory.claim
        yield
        known, version = self.world.known, self.world.version
        yield
        claim = next_claim(disk, known, self.token)
        self.directory.claim = claim
        self.directory.held |= {claim}
        yield
        self.holds = claim
        if self.world.version == version:
            self.world.write(claim, self.directory)
        yield


class World(RuleBasedStateMachine):
    directories: Bundle[Directory] = Bundle("directories")

    def __init__(self) -> None:
        super().__init__()
        self.known = Claim()
        self.version = 0
        self.copied = False
        self.brought_back = 0
        self.all: list[Directory] = []
        self.tokens = 0
        self.past: list[Claim] = [Claim()]

    def write(self, claim: Claim, directory: Directory) -> None:
        """No process works in a directory that never had the last claim."""
        if not self.brought_back:
            assert self.known == Claim() or self.known in directory.held
        self.known = claim
        self.version += 1
        self.past.append(claim)

    @rule(target=directories)
    def make(self) -> Directory | MultipleResults[Directory]:
        if self.all:
            return multiple()
        self.all.append(Directory(Claim()))
        return self.all[-1]

    @rule(target=directories, directory=directories)
    def copy(self, directory: Directory) -> Directory:
        self.copied = True
        self.all.append(Directory(directory.claim, directory.held))
        return self.all[-1]

    @rule(directory=directories)
    def start(self, directory: Directory) -> None:
        """One process at a time has the directory's lock."""
        if directory.process is None:
            self.tokens += 1
            directory.process = Process(self, directory, f"t{self.tokens}")

    @rule(directory=directories, steps=st.integers(1, 6))
    def step(self, directory: Directory, steps: int) -> None:
        for _ in range(steps if directory.process else 0):
            assert directory.process is not None
            directory.process.step()

    @rule(directory=directories)
    def kill(self, directory: Directory) -> None:
        directory.process = None

    @rule(data=st.data())
    def import_an_older_tree(self, data: st.DataObject) -> None:
        self.brought_back += 1
        self.known = data.draw(st.sampled_from(self.past))
        self.version += 1

    @invariant()
    def one_of_them_works(self) -> None:
        """One process works; the others notice it with their next look."""
        working = [d.process for d in self.all if d.process and d.process.holds == self.known]
        assert len(working) <= 1

    @invariant()
    def the_real_one_is_never_locked_out(self) -> None:
        """After two restores of ZooKeeper a tree may hold a claim whose number was assigned
        twice."""
        if not self.copied and self.brought_back <= 1:
            assert not any(d.process and d.process.refused for d in self.all)

    def teardown(self) -> None:
        """When all have restarted once more, exactly one works."""
        for directory in self.all:
            directory.process = None
            self.start(directory)
            for _ in range(20):
                self.step(directory, 1)
        for directory in self.all:
            self.step(directory, 6)
        working = [d for d in self.all if d.process and d.process.holds is not None]
        assert len(working) <= 1
        if len(self.all) == 1 and self.brought_back <= 1:
            assert len(working) == 1


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=2 * settings().max_examples)


def test_one_of_two_copies_that_start_at_once_runs() -> None:
    """Both have a claim of that number on disk, and only one of them has it in ZooKeeper."""
    world = World()
    first = world.make()
    assert isinstance(first, Directory)
    second = world.copy(first)
    for directory in (first, second):
        world.start(directory)
        world.step(directory, 3)
    world.step(first, 6)
    world.step(second, 6)
    assert [d.process is not None and d.process.refused for d in world.all] == [False, True]
