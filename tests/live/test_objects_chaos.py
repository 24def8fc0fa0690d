"""The promise for objects: whatever is killed, each line of each good object is in files once.

Objects appear in a directory while collectors, discovery, nodes, masters and ZooKeeper are killed
at random moments: empty, compressed, damaged and large ones, some that are written anew and some
that are deleted before they are read. ``FLUMENG_OBJECTS`` says how many,
``FLUMENG_CHAOS_SECONDS`` for how long processes are killed at least.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from flumeng.errors import FlumengError
from flumeng.operations.flows import apply_flow
from flumeng.store import Store
from flumeng.store.zookeeper import connect
from flumeng.views.lanes import lanes_of, listed_items
from flumeng.views.reading import Reading
from tests.live.chaos import TwoNodes, chaos_seconds, chaos_seed, kill_at_random
from zkschema import paths

OBJECTS = int(os.environ.get("FLUMENG_OBJECTS", "1500"))
LARGE_LINES = 300_000
SECONDS = 20.0
PATIENCE_SECONDS = 240.0
FLOW = """
flow: chaos
sources:
  - objects:
      paths: ["{folder}/in/*/*"]
      settle_seconds: 0.5
      discovery_seconds: 0.5
      shared: true
      lanes: 6
      after: move
      move_to: {folder}/done
place: {{collect: {{tasks: 2}}}}
delivery: exactly-once
batch: {{seconds: 0.5}}
sinks:
  - files: {{path: "{folder}/lake", shared: true}}
"""


class Objects(threading.Thread):
    """Writes the objects. ``expected``: how often each line is to be in the lake; ``damaged``: the
    objects that cannot be read to their end; ``lost``: those that may be gone before."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._chance = chance
        self.expected: Counter[str] = Counter()
        self.damaged: set[str] = set()
        self.lost: set[str] = set()

    def run(self) -> None:
        for directory in range(10):
            (self._folder / "in" / str(directory)).mkdir(parents=True)
        pause = SECONDS / OBJECTS
        for number in range(OBJECTS):
            self._write(number)
            time.sleep(pause)

    def _write(self, number: int) -> None:
        kind = number % 10
        name = f"{number % 10}/o{number}"
        count = 0 if kind == 3 else self._chance.randrange(1, 60)
        if number == OBJECTS // 3:
            count, kind = LARGE_LINES, 0
        lines = [f"{name} {n}" for n in range(count)]
        data = "".join(f"{line}\n" for line in lines).encode()
        if kind in (1, 4):
            data = gzip.compress(data)
        if number % 50 == 11:
            data = gzip.compress(b"".join(b"%s bad %d\n" % (name.encode(), n) for n in range(5000)))
            data, lines = data[: len(data) // 2], []
            self.damaged.add(name)
        self._show(name, data)
        if number % 50 == 22:
            self.lost.add(name)
            with contextlib.suppress(FileNotFoundError):
                (self._folder / "in" / name).unlink()
            return
        if number % 50 == 33:
            self._show(name, data)  # it settles as it is now, or both are read: the lines are alike
            self.lost.add(name)
            return
        self.expected.update(lines)

    def _show(self, name: str, data: bytes) -> None:
        whole = self._folder / "in" / f"{name.partition('/')[0]}/.{name.partition('/')[2]}"
        whole.write_bytes(data)
        whole.rename(self._folder / "in" / name)


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    cluster = TwoNodes(tmp_path)
    cluster.start_all()
    cluster.start("node2")
    cluster.start("master2")
    yield cluster
    cluster.stop()


def test_each_line_of_each_good_object_is_in_files_once(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    chance = random.Random(chaos_seed())
    (tmp_path / "in").mkdir()
    store = connect(two_nodes.hosts)
    apply_flow(store, FLOW.format(folder=tmp_path), author="test", reason="", now=0.0)
    objects = Objects(tmp_path, chance)
    objects.start()
    kill_anything(two_nodes, chance)
    objects.join(timeout=120)
    wait_until(partial(settled, store), lambda: str(lanes_of(Reading.of(store), ["chaos"])))

    found = lines_of(tmp_path / "lake")
    uncertain = objects.lost | objects.damaged
    certain = {line for line in found if line.split(" ")[0] not in uncertain}
    assert certain == objects.expected.keys()
    once = {line for line in found if line.split(" ")[0] not in objects.lost}
    assert {found[line] for line in once} == {1}
    rows = listed_items(Reading.of(store), "chaos", most=10_000)
    failed = {"/".join(row.location.split("/")[-2:]) for row in rows}
    assert {row.state for row in rows} <= {"failed"}
    assert objects.damaged <= failed <= objects.damaged | objects.lost
    wait_until(lambda: left(tmp_path) <= failed, lambda: str(left(tmp_path) - failed))
    moved = {"/".join(path.parts[-2:]) for path in (tmp_path / "done").glob("*/*")}
    assert moved.isdisjoint(objects.damaged)
    assert {line.split(" ")[0] for line in objects.expected} <= moved
    assert not list((tmp_path / "lake").glob("_flumeng/*/*.parquet")), "staging was left behind"
    store.close()


def kill_anything(cluster: TwoNodes, chance: random.Random) -> None:
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
    kill_at_random(cluster, chance, kinds, others, times=1, until=until)


def settled(store: Store) -> bool:
    """Whether nothing waits in any lane, and no commit is in progress."""
    with contextlib.suppress(FlumengError):
        lanes = lanes_of(Reading.of(store), ["chaos"])
        done = sum(lane.done + lane.failed for lane in lanes)
        waiting = sum(lane.waiting for lane in lanes)
        return done >= OBJECTS * 0.97 and not waiting and not store.children(paths.commits("chaos"))
    return False


def left(folder: Path) -> set[str]:
    return {"/".join(path.parts[-2:]) for path in (folder / "in").glob("*/*")}


def lines_of(lake: Path) -> Counter[str]:
    table = ds.dataset(lake, format="parquet").to_table(columns=["body"])
    return Counter(pc.cast(table["body"], "string").to_pylist())


def wait_until(ask: Callable[[], bool], state: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ask():
        assert time.monotonic() < deadline, state()
        time.sleep(0.5)
