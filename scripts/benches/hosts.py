"""What many journal servers, some of them frozen or dead, cost a collector's watcher, and when it
hears of events.

Real servers over real sockets, many in a light process; the watcher is a collector's, over records
in memory in the place of ZooKeeper. Of the frozen and the dead half are so from the beginning, and
half become so while it is measured. Frozen ones are stopped (SIGSTOP); of the dead ones that die
the processes are killed, and the others never answer a connection, like a host without power.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from benches.processes import cpu_seconds, rss_mb, threads
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.control.zookeeper import ABSENT, tree
from tests.testkit.light_servers import Commit, LightServers
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Journal, LiveNode

SERVERS_IN_PROCESS = 10
HEALTHY_IN_PROCESS = 40
WARM_SECONDS = 5.0
PATIENCE_SECONDS = 120.0


class Watched:
    """A watcher with an owner for each journal, which notes when it hears how far that reaches."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        store = FakeStore()
        tree.init(store)
        for name, address in addresses.items():
            node = name.split(".")[1]
            record = Journal(flow="bench", node=node, primary=node, term=1, in_sync=(node,))
            store.write(paths.journal(name), record, ABSENT)
            live = LiveNode(
                uuid=node, incarnation="i", addresses=(address,), pid=1, version="0", since=0.0
            )
            if not store.exists(paths.live_node(node)):
                store.write(paths.live_node(node), live, ABSENT)
        self.heard: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self.watcher = PositionWatcher(Addresses(store))
        for name in addresses:
            self.watcher.watch(name, [name], partial(self._note, name))

    def _note(self, name: str) -> None:
        reach = self.watcher.of([name]).get(name)
        if reach is not None:
            self.heard[name].append((reach.safe, time.monotonic()))

    def delays_ms(self, commits: Sequence[Commit]) -> list[float]:
        """Of each commit, until it was heard of; it has been, of all of them."""
        delays = []
        for name, safe, at in commits:
            heard_at = next(when for reached, when in self.heard[name] if reached >= safe)
            delays.append((heard_at - at) * 1000)
        return delays


def run(
    servers: int = 400, frozen: int = 40, dead: int = 40, seconds: float = 30.0, rate: float = 400.0
) -> dict[str, object]:
    """Delays from an event that is safe at a healthy server until the watcher knows of it."""
    names = [f"bench.n{number}.0.00000000" for number in range(servers)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flumeng-bench-")))

        def start(names: Sequence[str], each: int) -> list[LightServers]:
            started = []
            for first in range(0, len(names), each):
                part = LightServers(folder / names[first], names[first : first + each])
                stack.callback(part.kill)
                started.append(part)
            return started

        freezing = start(names[:frozen], SERVERS_IN_PROCESS)
        dying = start(names[frozen : frozen + dead // 2], SERVERS_IN_PROCESS)
        healthy = start(names[frozen + dead :], HEALTHY_IN_PROCESS)
        addresses = {
            name: address
            for part in (*freezing, *dying, *healthy)
            for name, address in part.addresses.items()
        }
        for name in names[frozen + dead // 2 : frozen + dead]:
            addresses[name] = stack.enter_context(_silent())
        for part in freezing[: len(freezing) // 2]:
            part.freeze()
        watched = Watched(addresses)
        stack.callback(watched.watcher.close)
        alive = names[frozen + dead :]
        began = time.monotonic()
        _until(lambda: len(watched.watcher.of(alive)) == len(alive))
        known_seconds = time.monotonic() - began
        time.sleep(WARM_SECONDS)
        idle = _cost(lambda: time.sleep(seconds))
        for part in healthy:
            part.commit(rate * len(part.addresses) / len(alive))

        def trouble() -> None:
            time.sleep(seconds / 3)
            for part in freezing:
                part.freeze()
            for part in dying:
                part.kill()
            time.sleep(seconds * 2 / 3)

        busy = _cost(trouble)
        for part in healthy:
            part.commit(0)
        time.sleep(2.0)
        commits = [commit for part in healthy for commit in part.report()]
        delays = watched.delays_ms(commits)
        return {
            "servers": servers,
            "frozen": frozen,
            "dead": dead,
            "all_known_seconds": round(known_seconds, 2),
            "commits": len(commits),
            "healthy_delay_ms_p50": round(float(np.percentile(delays, 50)), 1),
            "healthy_delay_ms_p99": round(float(np.percentile(delays, 99)), 1),
            "healthy_delay_ms_max": round(max(delays), 1),
            "watcher_threads": threads(os.getpid()),
            "watcher_rss_mb": rss_mb(os.getpid()),
            "watcher_idle_cpu_percent": idle,
            "watcher_cpu_percent": busy,
        }


@contextmanager
def _silent() -> Iterator[str]:
    """An address where connections are neither taken nor refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        host, port = listener.getsockname()
        for _ in range(2):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex((host, port))
        yield f"{host}:{port}"


def _cost(act: Callable[[], object]) -> float:
    """What this process took of a core while that ran, in percent."""
    before, began = cpu_seconds(os.getpid()), time.monotonic()
    act()
    return round(100 * (cpu_seconds(os.getpid()) - before) / (time.monotonic() - began), 1)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "waited in vain for all healthy servers"
        time.sleep(0.02)
