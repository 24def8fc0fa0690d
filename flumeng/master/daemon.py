"""The master's loop: one tick is read, plan, apply, report."""

from __future__ import annotations

import gc
import logging
import os
import queue
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from flumeng import __version__
from flumeng.errors import ConflictError, FlumengError, UnavailableError
from flumeng.master.measures import Measures
from flumeng.plan import Action, Drop, Planner, together
from flumeng.state.reader import WATCHED, Reader
from flumeng.store import ABSENT, ANY, Check, Path, Remove, Store, tree
from flumeng.store.zookeeper import ZooKeeperStore
from zkschema import paths, table
from zkschema.records import LiveMaster

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.02
DROP_AT_ONCE = 100
REASONS_SAID = 20


class Master:
    """One master process. ``stop`` may be called from any thread.

    ``clock`` gives seconds that only grow.
    """

    def __init__(
        self, store: Store, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._name = name
        self._reader = Reader(store, name, clock, time.time)
        self._planner = Planner()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping = False
        self._said = ""
        self.measures = Measures()
        for top in WATCHED:
            store.watch(top, self._on_change)

    def run(self) -> None:
        """Tick after each change and on a timer until ``stop``."""
        while not self._stopping:
            self._say(self.tick())
            pause = self._reader.look_again_seconds
            self.measures.health.turned(next_within_seconds=pause)
            self._wait()

    def stop(self) -> None:
        self._stopping = True
        self._wakes.put(None)

    def tick(self) -> str:
        """Gives the one sentence that says what was done and why."""
        if not self._store.connected:
            self._reader.invalidate()
            return self.measures.ticked("unavailable", "waiting for ZooKeeper")
        try:
            tree.require(self._store)
            self._announce()
            snapshot = self._reader.snapshot()
            with no_garbage_collection(), self.measures.planning(snapshot):
                actions = self._planner.plan(snapshot)
            self.measures.planned(actions)
            for group in together(actions):
                self._apply(group)
        except ConflictError as conflict:
            self._wakes.put(None)
            return self.measures.ticked("conflict", f"looking again: {conflict}")
        except UnavailableError as error:
            self._reader.invalidate()
            return self.measures.ticked("unavailable", f"waiting for ZooKeeper: {error}")
        except FlumengError as error:
            return self.measures.ticked("failed", f"cannot plan: {error}")
        reasons = [reason for action in actions for reason in action.why]
        return self.measures.ticked("done", _sentence(reasons))

    def _apply(self, group: Sequence[Action]) -> None:
        transactions = []
        for action in group:
            if isinstance(action, Drop):
                self._drop(action.flow)
            else:
                transactions.append(action.writes())
        self._store.commit_each(transactions)

    def _drop(self, flow: str) -> None:
        """Children first and the flow last, so that an interrupted removal is gone on with.

        Without its acks a flow looks as if nothing of it were collected. So it is marked before as
        one of which nothing is waited for. It stays as it is marked until it is gone: a master that
        was frozen meanwhile takes nothing away from the next flow of that name.
        """
        found = self._store.read(paths.flow(flow))
        if found is None or found.value.state != "deleted":
            raise ConflictError(f"flow {flow} is not one that was deleted any more")
        version = found.version
        if not found.value.discard:
            marked = replace(found.value, discard=True)
            version = self._store.write(paths.flow(flow), marked, version)
        unchanged = Check(paths.flow(flow), version)
        for top in (paths.acks(flow), paths.commits(flow), paths.flow(flow)):
            if self._store.exists(top):
                removals = [Remove(path, ANY) for path in reversed(self._tree(top))]
                for start in range(0, len(removals), DROP_AT_ONCE):
                    self._store.commit([unchanged, *removals[start : start + DROP_AT_ONCE]])

    def _tree(self, top: Path) -> list[Path]:
        """``top`` and all below it, parents first."""
        found = [top]
        for name in self._store.children(top):
            row = table.find(f"{top}/{name}")
            assert row is not None, f"{top}/{name} is not in the schema"
            names = row.matches(f"{top}/{name}")
            assert names is not None
            found += self._tree(row(*names))
        return found

    def _announce(self) -> None:
        me = paths.live_master(self._name)
        if not self._store.exists(me):
            record = LiveMaster(
                host=socket.gethostname(), pid=os.getpid(), version=__version__, since=time.time()
            )
            self._store.write(me, record, ABSENT)

    def _on_change(self, path: str) -> None:
        self._reader.on_watch(path)
        self._wakes.put(None)

    def _wait(self) -> None:
        """Until something changed, or it is time; changes that come together are one."""
        try:
            self._wakes.get(timeout=self._reader.look_again_seconds)
        except queue.Empty:
            return
        time.sleep(SETTLE_SECONDS)
        while not self._wakes.empty():
            self._wakes.get()

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            log.info("%s", sentence)
        self._said = sentence


def _sentence(reasons: list[str]) -> str:
    """What was done and why; of very much, how it begins."""
    more = len(reasons) - REASONS_SAID
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*reasons[:REASONS_SAID], *rest]) or "nothing to do"


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A plan makes very many objects that stay, and whoever waits for it waits for no search."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collect_garbage_rarely() -> None:
    """For the process: what is read of a cluster are very many objects that stay, and no cycles."""
    gc.set_threshold(100_000, 50, 50)


def run(
    hosts: str,
    *,
    name: str | None = None,
    session_seconds: float = 10.0,
    metrics: str | None = None,
    metrics_channel: int | None = None,
) -> None:
    """A master until SIGTERM or SIGINT. ZooKeeper away at start is waited for.

    ``metrics`` is where they are served, ``metrics_channel`` the descriptor over which the parent
    asks for them. Raises UserError when that address cannot be had.
    """
    collect_garbage_rarely()
    store = ZooKeeperStore(hosts, session_seconds)
    master = Master(store, name or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: master.stop())
    if metrics is not None or metrics_channel is not None:
        from flumeng.runtime.metrics import serving  # noqa: PLC0415  # nobody else needs HTTP

        measures = master.measures
        serving.serve(
            "master", measures.health, measures.readings, listen=metrics, descriptor=metrics_channel
        )
    log.info("master of %s", hosts)
    try:
        master.run()
    finally:
        store.close()
