"""One watch a server, for all tasks: each position goes to the tasks that read it, and a server
that is frozen, gone or answers nonsense costs its own journals only."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from flumeng.connectors.api.ranged import Reach
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.positions import PositionWatcher, backoff_seconds, pace
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.watch import WatchAnswer, WatchRequest
from flumeng.platform.errors import CorruptError, UnavailableError
from tests.testkit.cluster import new_cluster
from tests.testkit.logs import tracebacks
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.records import Journal, LiveNode

PATIENCE_SECONDS = 10.0


@dataclass
class Servers:
    """Scripted servers: address -> the ends of its journals, or its error.

    ``watches`` lists all watches that began; ``open`` counts those that have not ended.
    """

    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    full: bool = False
    wrong: dict[str, str] = field(default_factory=dict)
    watches: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    open: int = 0

    async def follow(
        self, address: str, request: WatchRequest
    ) -> AsyncGenerator[WatchAnswer, None]:
        self.watches.append((address, frozenset(request.journals)))
        self.open += 1
        told: dict[str, int] = {}
        missing: set[str] = set()
        try:
            while True:
                wrong = self.wrong.get(address)
                if wrong == "frozen":
                    await asyncio.sleep(0.2)
                    raise UnavailableError(f"{address} has said nothing")
                if wrong == "refuses":
                    raise UnavailableError(f"{address} refuses")
                if wrong == "breaks":
                    raise KeyError(address)
                if wrong == "babbles":
                    raise CorruptError(f"{address} babbles")
                ends = self.ends.get(address, {})
                gone = {name for name in request.journals if name not in ends} - missing
                missing |= gone
                moved = {
                    n: ends[n] for n in request.journals if n in ends and told.get(n) != ends[n]
                }
                if moved or gone or not told:
                    told |= moved
                    yield WatchAnswer(
                        {
                            name: Position(1, 0, end, closed=False, full=self.full)
                            for name, end in moved.items()
                        },
                        tuple(gone),
                    )
                if wrong == "crowded":
                    return
                await asyncio.sleep(0.002)
        finally:
            self.open -= 1


class World:
    def __init__(self) -> None:
        self.store = new_cluster()
        self.servers = Servers()
        self.watcher = PositionWatcher(Addresses(self.store), self.servers.follow)
        self.calls: dict[str, int] = {}

    def serve(self, node: str, **journals: int) -> list[str]:
        """Serve journals with these ends from a node of its own; returns their names."""
        address = f"{node}:1"
        names = {f"web.{node}.0.{suffix:0>8}": end for suffix, end in journals.items()}
        for name in names:
            record = Journal(flow="web", node=node, primary=node, term=1, in_sync=(node,))
            self.store.write(paths.journal(name), record, ANY)
        self.move(node, address)
        self.servers.ends[address] = names
        return list(names)

    def move(self, node: str, address: str) -> None:
        live = LiveNode(
            uuid="u", incarnation="i", addresses=(address,), pid=1, version="0", since=0.0
        )
        path = paths.live_node(node)
        self.store.write(path, live, ANY if self.store.exists(path) else ABSENT)

    def watch(self, owner: str, names: Sequence[str]) -> None:
        self.calls.setdefault(owner, 0)

        def note() -> None:
            assert threading.current_thread().name == "positions"
            self.calls[owner] += 1

        self.watcher.watch(owner, names, note)

    def end(self, name: str) -> int | None:
        reach = self.watcher.of([name]).get(name)
        return reach.safe if reach else None


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.watcher.close()
    assert world.servers.open == 0


def test_one_watch_a_server_covers_the_journals_of_all_tasks_and_no_others(world: World) -> None:
    a, b, c = world.serve("n1", a=5, b=6, c=7)
    world.watch("one", [a])
    world.watch("two", [a, b])
    wait_for(lambda: (world.end(a), world.end(b)) == (5, 6))
    assert world.end(c) is None
    assert world.servers.watches == [("n1:1", frozenset({a, b}))]
    assert world.watcher.of([a]) == {a: Reach("n1:1", 5, term=1)}


def test_new_position_is_reported_to_the_tasks_that_read_that_journal(world: World) -> None:
    a, b = world.serve("n1", a=5, b=6)
    world.watch("one", [a])
    world.watch("two", [b])
    wait_for(lambda: world.end(b))
    before = dict(world.calls)
    world.servers.ends["n1:1"][b] = 60
    wait_for(lambda: world.calls["two"] > before["two"])
    assert world.end(b) == 60
    assert world.calls["one"] == before["one"]


def test_read_of_known_positions_never_waits(world: World) -> None:
    (a,) = world.serve("n1", a=5)
    (b,) = world.serve("n2", b=5)
    world.servers.wrong["n1:1"] = "frozen"
    world.watch("one", [a, b])
    wait_for(lambda: world.end(b))
    began = time.monotonic()
    for _ in range(1000):
        world.watcher.of([a, b])
    assert time.monotonic() - began < PATIENCE_SECONDS / 2


@pytest.mark.parametrize("wrong", ["frozen", "refuses", "babbles"])
def test_failing_server_costs_its_own_journals_only(world: World, wrong: str) -> None:
    bad = [world.serve(f"n{number}", a=5)[0] for number in range(40)]
    (good,) = world.serve("n99", a=5)
    for number in range(40):
        world.servers.wrong[f"n{number}:1"] = wrong
    world.watch("one", [*bad, good])
    wait_for(lambda: world.end(good) == 5)
    for end in range(6, 20):
        world.servers.ends["n99:1"][good] = end
        began = time.monotonic()
        wait_for(lambda: world.end(good) == end)  # noqa: B023
        assert time.monotonic() - began < PATIENCE_SECONDS / 2
    found = world.watcher.of(bad)
    assert all("babbles" in reach.trouble for reach in found.values())
    assert wrong == "babbles" or not found


@pytest.mark.slow
def test_server_that_comes_back_is_watched_again(world: World) -> None:
    (a,) = world.serve("n1", a=5)
    world.watch("one", [a])
    wait_for(lambda: world.end(a) == 5)
    world.servers.wrong["n1:1"] = "refuses"
    wait_for(lambda: world.end(a) is None)
    world.servers.ends["n1:1"][a] = 9
    world.servers.wrong.clear()
    wait_for(lambda: world.end(a) == 9)


@pytest.mark.long
def test_failing_server_is_logged_once_and_again_when_a_person_is_needed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (a,) = world.serve("n1", a=5)
    for wrong in ("refuses", "breaks"):
        world.servers.wrong["n1:1"] = wrong
        world.watch("one", [a])
        before = len(world.servers.watches)
        wait_for(lambda: len(world.servers.watches) >= before + 3)  # noqa: B023
    world.servers.wrong.clear()
    wait_for(lambda: world.end(a) == 5)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "INFO"]
    assert tracebacks(caplog) == 1


def test_attempts_at_a_failing_server_become_rare() -> None:
    assert [backoff_seconds(failures) for failures in (1, 2, 3, 6, 1000)] == [0.5, 1, 2, 10, 10]


def test_answers_and_heartbeats_of_all_servers_together_are_bounded() -> None:
    for servers in (1, 10, 100, 400):
        gap, heartbeat = pace(servers)
        assert servers == 1 or servers / gap <= 1000
        assert servers / heartbeat <= 40
    assert pace(1) == (0.02, 2.0)


@pytest.mark.slow
def test_a_restarted_node_is_found_at_its_new_address(world: World) -> None:
    (a,) = world.serve("n1", a=5)
    world.watch("one", [a])
    wait_for(lambda: world.end(a) == 5)
    world.servers.wrong["n1:1"] = "refuses"
    world.servers.ends["n1:2"] = {a: 8}
    world.move("n1", "n1:2")
    wait_for(lambda: world.watcher.of([a]) == {a: Reach("n1:2", 8, term=1)})


def test_journal_that_is_served_later_is_reported_then(world: World) -> None:
    a, b = world.serve("n1", a=5, b=5)
    end = world.servers.ends["n1:1"].pop(b)
    world.watch("one", [a, b])
    wait_for(lambda: world.end(a) == 5)
    assert world.end(b) is None
    world.servers.ends["n1:1"][b] = end
    wait_for(lambda: world.end(b) == 5)


def test_journal_watched_again_at_once_stays_known(world: World) -> None:
    """A task that takes its journals again after a failure."""
    (a,) = world.serve("n1", a=5)
    world.watch("one", [a])
    wait_for(lambda: world.end(a) == 5)
    for end in range(6, 50):
        world.watcher.forget("one")
        world.servers.ends["n1:1"][a] = end
        world.watch("one", [a])
        wait_for(lambda: world.end(a) == end)  # noqa: B023


def test_journal_without_a_reader_is_not_watched(world: World) -> None:
    (a,) = world.serve("n1", a=5)
    world.watch("one", [a])
    wait_for(lambda: world.servers.open == 1)
    world.watcher.forget("one")
    wait_for(lambda: world.servers.open == 0)
    assert world.end(a) is None


@pytest.mark.slow
def test_many_tasks_that_begin_together_share_one_lookup(world: World) -> None:
    names = world.serve("n1", **{str(number): 5 for number in range(1000)})
    for name in names:
        world.watch(name, [name])
    wait_for(lambda: len(world.watcher.of(names)) == 1000)
    assert len(world.servers.watches) < 20


@pytest.mark.slow
def test_refreshed_journal_is_unknown_until_its_server_answers_again(world: World) -> None:
    a, b = world.serve("n1", a=5, b=6)
    world.watch("one", [a, b])
    wait_for(lambda: world.end(b) == 6)
    world.servers.wrong["n1:1"] = "frozen"
    world.watcher.refresh([a])
    time.sleep(0.1)
    assert world.end(a) is None
    world.servers.ends["n1:1"][a] = 7
    world.servers.wrong.clear()
    wait_for(lambda: world.end(a) == 7)


def test_server_with_too_many_watches_is_polled_now_and_then(world: World) -> None:
    world.watcher.poll_seconds = 0.05
    (a,) = world.serve("n1", a=5)
    world.servers.wrong["n1:1"] = "crowded"
    world.watch("one", [a])
    wait_for(lambda: world.end(a) == 5)
    world.servers.ends["n1:1"][a] = 6
    wait_for(lambda: world.end(a) == 6)
    assert len(world.servers.watches) < 20


def test_zookeeper_is_read_once_for_all_that_is_due(world: World) -> None:
    asked: list[int] = []
    read_each = world.store.read_each

    def counting(wanted: Sequence[object]) -> list[object]:
        asked.append(len(wanted))
        return list(read_each(wanted))  # type: ignore[arg-type]

    world.store.read_each = counting  # type: ignore[method-assign,assignment]
    names = [world.serve(f"n{number}", a=5)[0] for number in range(50)]
    for name in names:
        world.watch(name, [name])
    wait_for(lambda: len(world.watcher.of(names)) == 50)
    assert sum(asked) == 100
    assert len(asked) <= 6


def test_full_journal_is_reported_as_full(world: World) -> None:
    (name,) = world.serve("n1", a=5)
    world.watch("task", [name])
    wait_for(lambda: world.end(name) == 5)
    assert not world.watcher.of([name])[name].full
    world.servers.full = True
    world.servers.ends["n1:1"][name] = 6
    wait_for(lambda: world.end(name) == 6)
    assert world.watcher.of([name])[name].full
