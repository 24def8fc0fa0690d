"""A cluster of processes that tests kill at random, and the view of it from outside."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from flumeng.control.commands import operator
from flumeng.control.commands.tasks import restart_task
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.account import Account
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import FlumengError, UnavailableError
from tests.testkit.cluster import acks_of
from tests.testkit.daemons import module_of, start_logged
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_while_changing
from zkschema import paths

CHUNK = 200
ROTATE_LINES = 9_000
KINDS = ("ingest", "node", "collector", "master", "zookeeper")
ABSENT = 10
"""Give up a kind of process after so many looks without one."""
KILLS_OF_EACH = 2
PACE_SECONDS = 0.06
LOOK_SECONDS = 2.0
FLOW = "chaos"

FLOW_TEXT = """
flow: chaos
sources:
  - syslog: {{listen: "127.0.0.1:{port}", protocol: tcp}}
  - tail: {{paths: ["{logs}/app.log*"]}}
delivery: exactly-once
batch: {{seconds: 0.3, events: 50000}}
sinks:
  - files: {{{lake}}}
"""


class Operator(threading.Thread):
    """Restarts tasks whenever a node has set them aside, as it does with a flow during whose
    batches the collector has ended three times within 15 minutes."""

    def __init__(self, hosts: str) -> None:
        super().__init__(name="operator", daemon=True)
        self.enough = threading.Event()
        self._hosts = hosts

    def run(self) -> None:
        while not self.enough.wait(LOOK_SECONDS):
            with (
                contextlib.suppress(FlumengError),
                contextlib.closing(connect(self._hosts)) as store,
            ):
                while not self.enough.wait(LOOK_SECONDS):
                    for task in self._set_aside(store):
                        restart_task(operator.Operator(store, "test", "", 0.0), task)

    @staticmethod
    def _set_aside(store: Store) -> list[str]:
        found = store.read_many([paths.status(name) for name in store.children(paths.nodes())])
        tasks = [task for status in found if status for task in status.value.tasks.items()]
        return [key for key, task in tasks if "set aside: " in (task.error or "")]


class Cluster:
    """The three top processes, restarted by the test; the node restarts its children itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zookeeper = RealZooKeeper(folder / "zookeeper")
        self.hosts = f"{self.zookeeper.address}/chaos"
        self.tops: dict[str, subprocess.Popen[bytes]] = {}
        self._operator = Operator(self.hosts)

    def node_arguments(self, folder: str = "node", name: str = "n1") -> list[str]:
        return ["--zk", self.hosts, "--data", str(self.folder / folder), "--name", name]

    def start_all(self) -> None:
        self.start("zookeeper")
        store = connect(self.hosts)
        tree.init(store)
        store.close()
        self.start("master")
        self.start("node")
        self._operator.start()

    def start(self, name: str) -> None:
        if name == "zookeeper":
            self.zookeeper.start()
            return
        arguments = [self.hosts] if name == "master" else self.node_arguments()
        self.tops[name] = start_logged(
            self.folder / f"{name}.log", sys.executable, "-m", module_of(name), *arguments
        )

    def kill(self, kind: str) -> bool:
        """SIGKILL one of KINDS, or a Python worker of Spark (``executor``); False when there is no
        such process right now."""
        if kind == "zookeeper":
            self.zookeeper.kill()
        elif kind in self.tops:
            self.tops[kind].kill()
            self.tops[kind].wait()
        else:
            pid = self.executor() if kind == "executor" else self.child(kind)
            if pid is None:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True

    def child(self, kind: str) -> int | None:
        return child_of(self.tops["node"].pid, module_of(kind))

    def executor(self) -> int | None:
        """A process of Spark's that runs our stages."""
        collector = self.child("collector")
        below = [] if collector is None else descendants(collector)
        daemons = [pid for pid in below if "pyspark.daemon" in command_of(pid)]
        workers = [pid for pid in daemons if not set(children_of(pid)) & set(daemons)]
        return workers[-1] if workers else None

    def stop(self) -> None:
        self._operator.enough.set()
        self._operator.join()
        for process in self.tops.values():
            process.terminate()
        for process in self.tops.values():
            process.wait(timeout=60)
        self.zookeeper.kill()


class TwoNodes(Cluster):
    """A second node and a second master beside the first ones."""

    def start(self, name: str) -> None:
        if name not in ("node2", "master2"):
            super().start(name)
            return
        node = self.node_arguments("node2", "n2")
        module, arguments = ("master", [self.hosts]) if name == "master2" else ("node", node)
        self.tops[name] = start_logged(
            self.folder / f"{name}.log", sys.executable, "-m", module_of(module), *arguments
        )

    def child(self, kind: str) -> int | None:
        """The pid of a child, on whichever node it runs now."""
        parents = [self.tops[name].pid for name in ("node", "node2")]
        random.shuffle(parents)
        found = (child_of(pid, module_of(kind)) for pid in parents)
        return next((pid for pid in found if pid is not None), None)


def children_of(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    return [found for child in children_of(pid) for found in (child, *descendants(child))]


def command_of(pid: int) -> list[str]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def child_of(parent: int, module: str) -> int | None:
    """The pid of ``python -m module`` among the children of ``parent``."""
    return next((pid for pid in children_of(parent) if module in command_of(pid)), None)


def tcp_line(number: int) -> bytes:
    return f"<13>1 2026-11-20T10:00:00Z sender chaos - - - tcp={number} {'x' * 120}\n".encode()


def write_rotating(logs: Path, lines: int) -> None:
    """Write so many numbered lines into app.log and rename it again and again."""
    current = (logs / "app.log").open("ab", buffering=0)
    for number in range(0, lines, CHUNK):
        texts = (f"file={n} {'y' * 80}\n" for n in range(number, number + CHUNK))
        current.write("".join(texts).encode())
        if number % ROTATE_LINES == 0 and number:
            (logs / "app.log").rename(logs / f"app.log.{number}")
            current.close()
            current = (logs / "app.log").open("ab", buffering=0)
        time.sleep(PACE_SECONDS * 2)
    current.close()


PROGRESS_SECONDS = 60.0


class Watcher:
    """The state of the flow ``chaos`` seen from outside: ZooKeeper and its journals."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def address(self) -> str:
        live = self._store.read(paths.live_node("n1"))
        if live is None or not any(live.value.addresses):
            raise UnavailableError("the node is not there")
        (address,) = live.value.addresses
        return address

    def positions(self) -> dict[str, Position]:
        with JournalClient(self.address(), timeout_seconds=30) as client:
            return client.positions()

    def accounts(self) -> dict[str, Account]:
        with JournalClient(self.address(), timeout_seconds=30) as client:
            return client.accounts()

    def acks(self) -> dict[str, int]:
        return acks_of(self._store, FLOW)

    def settled(self) -> bool:
        ends = {name: position.safe for name, position in self.positions().items()}
        return bool(ends) and ends == self.acks() and not self._store.children(paths.commits(FLOW))

    def settle(self, seconds: float = 120.0, events: int = 0) -> None:
        """Wait until every ack is at its journal's end, ``events`` are acked at least, and no
        commit is in progress; for as long as acks move within ``seconds``."""
        wait_while_changing(
            lambda: sum(self.acks().values()) >= events and self.settled(),
            self.acks,
            self.state,
            seconds=seconds,
            pause_seconds=0.2,
            ignoring=FlumengError,
        )

    def see_progress(self) -> None:
        """Return when acks have moved: Spark may start more slowly than kills come."""
        acks, until = self.acks(), time.monotonic() + PROGRESS_SECONDS
        while self.acks() == acks and time.monotonic() < until:
            time.sleep(0.2)

    def state(self) -> str:
        return f"positions {self.positions()}, acks {self.acks()}"


@dataclass(frozen=True)
class Lake:
    """``options`` are those of the sink ``files``; ``path`` is where it writes in ``files``."""

    options: str
    path: str
    files: fs.FileSystem


def on_disk(path: Path) -> Lake:
    return Lake(f'path: "{path}/dt=%Y-%m-%d"', str(path), fs.LocalFileSystem())


class LakeWatcher(Watcher):
    """Sees the files of the lake too."""

    def __init__(self, store: Store, lake: Lake) -> None:
        super().__init__(store)
        self._lake = lake

    def last_accepted(self) -> int:
        """The highest TCP number in the journals, or in the lake where they hold none any more."""
        highest = -1
        with JournalClient(self.address(), timeout_seconds=30) as client:
            for name, position in client.positions().items():
                for batch in client.read(name, position.floor, position.safe):
                    found = numbers(batch.column("body"), "tcp")
                    highest = max(highest, *found, -1) if found else highest
        if highest < 0:
            self.settle()
            highest = max(self.lake_numbers("tcp"), default=-1)
        return highest

    def lake_numbers(self, kind: str) -> list[int]:
        if not any("/dt=" in path for path in self.paths()):
            return []
        return numbers(self.table(["body"])["body"], kind)

    def table(self, columns: list[str]) -> ds.Table:
        files = [path for path in self.paths() if "/dt=" in path]
        found = ds.dataset(files, filesystem=self._lake.files, format="parquet")
        return found.to_table(columns=columns)

    def paths(self) -> list[str]:
        """All files below the lake, staged ones too."""
        selector = fs.FileSelector(self._lake.path, allow_not_found=True, recursive=True)
        return [info.path for info in self._lake.files.get_file_info(selector) if info.is_file]


def numbers(bodies: object, kind: str) -> list[int]:
    found = pc.extract_regex(pc.cast(bodies, "string"), rf"{kind}=(?P<n>\d+) ")
    return [int(n) for n in pc.struct_field(found, "n").to_pylist() if n is not None]


def kill_at_random(
    cluster: Cluster,
    chance: random.Random,
    kinds: Sequence[str] = KINDS,
    others: Mapping[str, Callable[[], object]] | None = None,
    *,
    times: int = KILLS_OF_EACH,
    until: float = 0.0,
    rest: Callable[[], object] | None = None,
) -> None:
    """Kill each of ``kinds`` with SIGKILL ``times`` times in random order and start it again.

    ``others`` maps names to functions that kill and restart something. The killing goes on until
    ``until`` on the monotonic clock. ``rest`` is called before each kill and by default sleeps for
    some seconds. A process that is absent for a while, such as an executor when everything is
    delivered, is skipped.
    """
    others = others or {}
    rest = rest or (lambda: time.sleep(chance.uniform(1.0, 5.0)))
    while True:
        left = [kind for kind in (*kinds, *others) for _ in range(times)]
        chance.shuffle(left)
        absent = 0
        while left and absent < ABSENT:
            rest()
            kind = left.pop()
            absent += 1
            if kind in others:
                others[kind]()
                absent = 0
            elif not cluster.kill(kind):
                left.insert(0, kind)
            else:
                absent = 0
                time.sleep(chance.uniform(0.0, 1.0))
                if kind in ("node", "master", "zookeeper"):
                    cluster.start(kind)
        if time.monotonic() >= until:
            return


def chaos_seconds() -> float:
    """Minimum duration of the killing; 0: only a few kills of each."""
    return float(os.environ.get("FLUMENG_CHAOS_SECONDS", "0"))


def chaos_seed() -> int:
    seed = int(os.environ.get("FLUMENG_CHAOS_SEED", random.randrange(10**6)))
    print(f"FLUMENG_CHAOS_SEED={seed}")
    return seed
