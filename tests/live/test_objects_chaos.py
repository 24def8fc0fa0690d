"""The promise for objects: whichever process is killed, each line of each good object is in files
once.

Objects appear in a directory and in a bucket of a real S3 server while collectors, discovery,
nodes, masters and ZooKeeper are killed at random moments. See ``Trouble`` for the damage of some
of them. Unreadable objects are reported, and an object is moved when it is acked, and never before.

``FLUMENG_OBJECTS`` says how many objects, ``FLUMENG_CHAOS_SECONDS`` for how long processes are
killed at least: then some objects have 50 MB, and a host and the S3 server are frozen too, longer
than sessions last.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.queues import ItemRow, lanes_of, listed_items
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import FlumengError
from tests.live.chaos import TwoNodes, chaos_seconds, chaos_seed, child_of, kill_at_random
from tests.live.objects_stores import Bucket, Directory, Place
from tests.live.objects_writers import Expected, Trouble, wrong_lines
from tests.testkit.cluster import acks_of
from tests.testkit.daemons import module_of
from tests.testkit.servers.s3 import RealS3, build
from tests.testkit.waiting import wait_while_changing
from zkschema import paths

pytestmark = pytest.mark.long

OBJECTS = int(os.environ.get("FLUMENG_OBJECTS", "1000"))
LONG = chaos_seconds() > 0
SECONDS = 0.8 * chaos_seconds() if LONG else 12.0
HUGE, HUGE_BYTES = (12, 50 << 20) if LONG else (3, 4 << 20)
PATIENCE_SECONDS = 240.0
"""Fail after so long without progress before all is done."""
PROGRESS_SECONDS = 60.0
"""A kill waits at most this long for an ack since the last kill."""
FROZEN_SECONDS = 30.0
LOOK_SECONDS = 10.0 if LONG else 1.0
"""Seconds between two looks at all waiting items."""
SAMPLE = 100
MOST_ITEMS = 1_000_000
FLOW = """
flow: chaos
sources:
  - objects:
      paths: ["{paths}"]
      settle_seconds: 0.5
      discovery_seconds: 0.5
      shared: true
      lanes: {lanes}
      after: move
      move_to: "{move_to}"
place: {{collect: {{tasks: 2}}}}
delivery: exactly-once
batch: {{seconds: 0.5}}
sinks:
  - files: {{path: "{lake}", shared: true}}
"""


class Guard(threading.Thread):
    """Reports objects that are gone before their ack.

    Of waiting items it checks the next ones of all lanes, and a random sample.
    """

    def __init__(self, hosts: str, place: Place, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._hosts, self._place, self._chance = hosts, place, chance
        self.enough = threading.Event()
        self.looked_at = 0
        self.away: set[str] = set()
        """Names of those; deleted or rewritten objects may be among them."""

    def run(self) -> None:
        while not self.enough.wait(LOOK_SECONDS):
            with (
                contextlib.suppress(FlumengError),
                contextlib.closing(connect(self._hosts)) as store,
            ):
                while not self.enough.wait(LOOK_SECONDS):
                    self._look(store)

    def _look(self, store: Store) -> None:
        waiting = unacked(store)
        rows = list(waiting.values())
        some = [row for row in rows if row.state == "running"]
        some += self._chance.sample(rows, min(SAMPLE, len(rows)))
        gone = {row.item for row in some if not self._place.has(name_of(row))}
        self.looked_at += len(some)
        if gone:
            self.away |= {name_of(waiting[item]) for item in gone & unacked(store).keys()}


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.long)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "directory":
        yield Directory(tmp_path / "objects")
        return
    build()
    server = RealS3(tmp_path / "s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.start()
    yield Bucket(server)
    server.stop()


@pytest.fixture
def two_nodes(place: Place, tmp_path: Path) -> Iterator[TwoNodes]:
    del place  # its credentials are in the environment of all processes
    cluster = TwoNodes(tmp_path)
    cluster.start_all()
    cluster.start("node2")
    cluster.start("master2")
    yield cluster
    cluster.stop()


def test_each_line_of_each_good_object_is_in_files_once(
    two_nodes: TwoNodes, place: Place, tmp_path: Path
) -> None:
    seed = chaos_seed()
    chance = random.Random(seed)
    store = connect(two_nodes.hosts)
    lake = tmp_path / "lake"
    text = FLOW.format(paths=place.paths, move_to=place.move_to, lake=lake, lanes=16 if LONG else 6)
    apply_flow(Operator(store, "test", "", 0.0), text)
    trouble = Trouble(
        place, seed, objects=OBJECTS, seconds=SECONDS, huge=HUGE, huge_bytes=HUGE_BYTES
    )
    guard = Guard(two_nodes.hosts, place, chance)
    trouble.start()
    guard.start()
    freezer = threading.Thread(target=freeze_anything, args=(two_nodes, place), daemon=True)
    if LONG:
        freezer.start()
    kill_anything(two_nodes, store, chance)
    trouble.finish(120 + chaos_seconds())
    if LONG:
        freezer.join(timeout=4 * FROZEN_SECONDS)
    expected = trouble.expected
    wait_until_done(store, place, expected)
    guard.enough.set()
    guard.join(timeout=30)

    assert wrong_lines(lake, expected.table()) == []
    check_told(store, expected)
    check_moved(place, expected)
    assert guard.looked_at
    assert guard.away <= expected.deleted | expected.rewritten.keys(), (
        "an object was moved before it was acked"
    )
    assert not list(lake.glob("_flumeng/*/*.parquet")), "staging was left behind"
    store.close()


def check_told(store: Store, expected: Expected) -> None:
    """All damaged objects are reported; of others only those that were deleted or rewritten."""
    rows = listed_items(ReadCache.of(store), "chaos", MOST_ITEMS)
    assert {row.state for row in rows} == {"failed"}
    failed = {name_of(row) for row in rows}
    assert expected.damaged <= failed
    assert failed <= expected.damaged | expected.deleted | expected.rewritten.keys()


def check_moved(place: Place, expected: Expected) -> None:
    moved = place.names("done")
    assert place.names("in") == expected.damaged
    assert moved.isdisjoint(expected.damaged)
    assert expected.good | expected.rewritten.keys() <= moved
    stale = [n for n, data in expected.rewritten.items() if place.get("done", n) != data]
    assert stale == [], "an object is not where it is to be as it is in the end"


def kill_anything(cluster: TwoNodes, store: Store, chance: random.Random) -> None:
    def restart(name: str) -> None:
        cluster.tops[name].kill()
        cluster.tops[name].wait()
        time.sleep(chance.uniform(0.0, 2.0))
        cluster.start(name)

    others: dict[str, Callable[[], object]] = {
        "node2": partial(restart, "node2"),
        "master2": partial(restart, "master2"),
    }
    kinds = ("collector", "discovery", "node", "master", "zookeeper")
    until = time.monotonic() + chaos_seconds()
    if not LONG:
        kill_at_random(cluster, chance, kinds, times=1)
        return
    rest = partial(wait_for_progress, store, chance)
    kill_at_random(cluster, chance, kinds, others, times=1, until=until, rest=rest)


def wait_for_progress(store: Store, chance: random.Random) -> None:
    """Wait for an ack between two kills: else a slow machine would only start processes."""
    deadline, before = time.monotonic() + PROGRESS_SECONDS, acked(store)
    while acked(store) in (before, None) and time.monotonic() < deadline:
        time.sleep(1.0)
    time.sleep(chance.uniform(1.0, 5.0))


def acked(store: Store) -> int | None:
    """The total acks of the lanes; None while ZooKeeper does not answer."""
    with contextlib.suppress(FlumengError):
        return sum(acks_of(store, "chaos").values())
    return None


def freeze_anything(cluster: TwoNodes, place: Place) -> None:
    """Freeze a host after a third of the time, and the server after two thirds, between the
    kills."""
    time.sleep(chaos_seconds() / 3)
    freeze_host(cluster)
    time.sleep(chaos_seconds() / 3)
    if isinstance(place, Bucket):
        place.server.freeze()
        time.sleep(FROZEN_SECONDS)
        place.server.thaw()


def freeze_host(cluster: TwoNodes) -> None:
    """Freeze the second node and its children until others own its tasks.

    The children wake up first, as owners that do not know of the takeover.
    """
    node = cluster.tops["node2"].pid
    children = [child_of(node, module_of(kind)) for kind in ("collector", "discovery")]
    frozen = [pid for pid in (*children, node) if pid is not None]
    for number, pause in ((signal.SIGSTOP, 0.0), (signal.SIGCONT, 1.0)):
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(pause)
        if number == signal.SIGSTOP:
            time.sleep(FROZEN_SECONDS)


def wait_until_done(store: Store, place: Place, expected: Expected) -> None:
    """Wait until all lanes are empty, no commit is in progress and only damaged objects are left.

    Goes on as long as there is progress.
    """

    def left() -> int:
        if store.children(paths.commits("chaos")):
            return -1
        return len(place.names("in") - expected.damaged)

    def lanes() -> tuple[int, int]:
        """How many items wait, and how many are done."""
        of_flow = lanes_of(ReadCache.of(store), ["chaos"])
        return sum(lane.waiting for lane in of_flow), sum(lane.done for lane in of_flow)

    wait_while_changing(
        lambda: not lanes()[0] and not left(),
        lambda: (*lanes(), left()),
        "(items that wait, items that are done, objects that are left)",
        seconds=PATIENCE_SECONDS,
        pause_seconds=1.0,
        ignoring=FlumengError,
    )


def unacked(store: Store) -> dict[str, ItemRow]:
    rows = listed_items(ReadCache.of(store), "chaos", MOST_ITEMS)
    return {row.item: row for row in rows if row.state in ("running", "waiting")}


def name_of(row: ItemRow) -> str:
    return "/".join(row.location.partition("?")[0].split("/")[-2:])
