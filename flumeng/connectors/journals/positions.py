"""How far each journal can be read now: one watch a server, shared by all tasks of the process.

One thread holds all watches, whatever their number, and one other looks up addresses. A server that
does not answer costs its own journals a delay, and the others nothing: each has its own watch, and
its own waits between two tries. A call that takes too long is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Reach, Standstill
from flumeng.connectors.journals import standstills
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.probes import Probes
from flumeng.journal.serving import watch_client
from flumeng.journal.serving.watch import WatchAnswer, WatchRequest
from flumeng.platform import vital
from flumeng.platform.errors import CorruptError, UnavailableError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""So often it is seen whether an address is to be read again."""
GATHER_SECONDS = 0.02
"""What many tasks begin to watch at the same time is asked for together."""
POLL_SECONDS = 1.0
"""The gap between two watches that a server ends early, because it has too many."""
BACKOFF_SECONDS = 0.5
BACKOFF_MOST_SECONDS = 10.0

Follow = Callable[[str, WatchRequest], AsyncGenerator[WatchAnswer, None]]


def pace(servers: int) -> tuple[float, float]:
    """The least gap between two answers of each server and their heartbeat, in seconds.

    At most about 1,000 answers come in a second, and 40 heartbeats, however many servers there are.
    """
    return min(max(0.02, servers / 1000), 0.5), min(max(2.0, servers / 40), 10.0)


def backoff_seconds(failures: int) -> float:
    """How long a server is left alone after so many tries in a row that failed."""
    return float(min(BACKOFF_SECONDS * 2 ** min(failures - 1, 10), BACKOFF_MOST_SECONDS))


@dataclass(frozen=True)
class _Owner:
    journals: frozenset[str]
    on_change: Callable[[], None]


@dataclass(eq=False)
class _Server:
    """``names`` are the journals to watch there. ``told``: whether the watch that runs has answered
    yet. ``again``: another one is to take its place, although the names are the same."""

    address: str
    names: frozenset[str]
    told: bool = False
    again: bool = False
    failures: int = 0
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class PositionWatcher:
    """Its methods may be called from any thread, and none of them blocks but ``close``.

    ``follow`` is how one server is watched.
    """

    def __init__(self, addresses: Addresses, follow: Follow = watch_client.watch) -> None:
        self._addresses = addresses
        self._follow = follow
        self._lock = threading.Lock()
        self._owners: dict[Hashable, _Owner] = {}
        self._owners_of: defaultdict[str, set[Hashable]] = defaultdict(set)
        self._reach: dict[str, Reach] = {}
        self._not_before: dict[str, int] = {}
        self._watches = itertools.count(1)
        self._closing = False
        self._gathering = False
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        # Of the thread alone:
        self._servers: dict[str, _Server] = {}
        self._missing: set[str] = set()
        self._looker = ThreadPoolExecutor(1, "addresses")
        self._looking = False
        self._thread = vital.start("positions", self._run)

    def watch(
        self, owner: Hashable, journals: Iterable[str], on_change: Callable[[], None]
    ) -> None:
        """From now on, ``on_change`` is called after each change of what ``of`` says of these
        journals, instead of what this owner watched before.

        It is called from the watcher's thread and only enqueues.
        """
        with self._lock:
            self._drop(owner)
            self._owners[owner] = _Owner(frozenset(journals), on_change)
            for name in self._owners[owner].journals:
                self._owners_of[name].add(owner)
        self._look_again()

    def forget(self, owner: Hashable) -> None:
        with self._lock:
            self._drop(owner)
        self._look_again()

    def of(self, journals: Iterable[str]) -> dict[str, Reach]:
        """What is known of journals that somebody watches. Lacks those that cannot be reached now,
        and those whose servers were not heard yet."""
        found = ((name, self._reach.get(name)) for name in journals)
        return {name: reach for name, reach in found if reach is not None}

    def refresh(self, journals: Collection[str]) -> None:
        """Say nothing more of these journals until their servers have been asked anew, so that the
        next that ``of`` says is from after this call."""
        with self._lock:
            number = next(self._watches)
            for name in journals:
                if name in self._owners_of:
                    self._not_before[name] = number
                    self._reach.pop(name, None)
        self._call(self._refresh, frozenset(journals))

    def close(self) -> None:
        """End all watches and both threads."""
        self._closing = True
        self._call(self._wake.set)
        self._thread.join()

    def _drop(self, owner: Hashable) -> None:
        gone = self._owners.pop(owner, None)
        for name in gone.journals if gone else ():
            self._owners_of[name].discard(owner)
            if not self._owners_of[name]:
                del self._owners_of[name]

    def _look_again(self) -> None:
        """Soon, once for all that is changed until then."""
        if not self._gathering:
            self._gathering = True
            self._call(self._wake.set)

    def _call(self, act: Callable[..., None], *given: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act, *given)

    # From here on everything happens in the watcher's thread.

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._work())

    async def _work(self) -> None:
        while not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(GATHER_SECONDS)
                self._gathering = False
                self._arrange()
            self._look_up()
        for server in self._servers.values():
            self._stop(server)
        self._looker.shutdown(wait=False, cancel_futures=True)

    def _look_up(self) -> None:
        """Read the addresses that are due, in the thread that may wait for ZooKeeper."""
        self._addresses.doubt(self._missing)
        due = self._addresses.due(self._owners_of.copy())
        if due and not self._looking:
            self._looking = True
            self._looker.submit(self._addresses.look, due).add_done_callback(self._on_looked)

    def _on_looked(self, looked: Future[bool]) -> None:
        self._looking = False
        if not looked.cancelled() and looked.result():
            self._call(self._wake.set)

    def _arrange(self) -> None:
        """One watch for each server of journals that somebody watches."""
        wanted = self._owners_of.copy().keys()
        self._addresses.retain(wanted)
        self._missing &= wanted
        with self._lock:
            self._not_before = {n: at for n, at in self._not_before.items() if n in wanted}
        places = self._addresses.of(wanted)
        names: defaultdict[str, set[str]] = defaultdict(set)
        for name, address in places.items():
            names[address].add(name)
        self._lose([n for n, reach in list(self._reach.items()) if places.get(n) != reach.address])
        for address in self._servers.keys() - names.keys():
            self._stop(self._servers.pop(address))
        for address, these in names.items():
            server = self._servers.get(address)
            if server is None:
                server = self._servers[address] = _Server(address, frozenset(these))
                self._start(server)
            elif server.names != these:
                server.names = frozenset(these)
                self._replace(server)

    def _refresh(self, journals: frozenset[str]) -> None:
        for server in self._servers.values():
            if server.names & journals:
                server.again = True
                self._replace(server)

    def _replace(self, server: _Server) -> None:
        """One that waits for its first answer, or for its next try, is replaced after that."""
        if server.told:
            self._stop(server)
            self._start(server)

    def _start(self, server: _Server) -> None:
        server.told = False
        server.task = self._loop.create_task(self._keep_watch(server), name=server.address)

    def _stop(self, server: _Server) -> None:
        if server.task is not None:
            server.task.cancel()

    async def _keep_watch(self, server: _Server) -> None:
        """Watch one server until the task is cancelled."""
        while True:
            began = self._loop.time()
            try:
                replaced = await self._watch_once(server)
            except UnavailableError as error:
                self._on_away(server, str(error))
            except CorruptError as error:
                self._on_nonsense(server, str(error))
            except Exception as error:
                log.exception("the watch of %s failed", server.address)
                self._on_nonsense(server, f"{type(error).__name__}: {error}")
            else:
                if not replaced:
                    await asyncio.sleep(began + POLL_SECONDS - self._loop.time())
                continue
            server.told = False
            await asyncio.sleep(backoff_seconds(server.failures))

    async def _watch_once(self, server: _Server) -> bool:
        """Whether another watch is to take the place of this one at once."""
        names, number = server.names, next(self._watches)
        server.told = server.again = False
        gap, heartbeat = pace(len(self._servers))
        request = WatchRequest(tuple(names), gap_seconds=gap, heartbeat_seconds=heartbeat)
        async with contextlib.aclosing(self._follow(server.address, request)) as answers:
            async for answer in answers:
                self._on_answer(server, number, answer)
                if server.again or server.names != names:
                    return True
        return False

    def _on_answer(self, server: _Server, number: int, answer: WatchAnswer) -> None:
        if server.failures:
            log.info("journal server %s answers again", server.address)
        server.told, server.failures = True, 0
        self._missing -= answer.positions.keys()
        self._missing.update(answer.not_served)
        self._lose(answer.not_served)
        told = {
            name: Reach(
                server.address,
                position.safe,
                position.held,
                floor=position.floor,
                closed=position.closed,
                full=position.full,
            )
            for name, position in answer.positions.items()
        }
        self._learn(told, number)

    def _on_away(self, server: _Server, why: str) -> None:
        if not server.failures:
            log.warning("journals wait: %s", why)
        server.failures += 1
        self._missing |= server.names
        self._lose(server.names)

    def _on_nonsense(self, server: _Server, why: str) -> None:
        if not server.failures:
            log.error("%s", why)
        server.failures += 1
        trouble = Reach(server.address, 0, trouble=why)
        self._learn(dict.fromkeys(server.names, trouble), next(self._watches))

    def _learn(self, told: Mapping[str, Reach], number: int) -> None:
        """What the watch of this number has said."""
        with self._lock:
            fresh = [
                name
                for name, reach in told.items()
                if number > self._not_before.get(name, 0) and self._reach.get(name) != reach
            ]
            self._reach.update((name, told[name]) for name in fresh)
            calls = self._calls(fresh)
        for call in calls:
            call()

    def _lose(self, names: Iterable[str]) -> None:
        """They cannot be reached now."""
        with self._lock:
            lost = [name for name in names if self._reach.pop(name, None) is not None]
            calls = self._calls(lost)
        for call in calls:
            call()

    def _calls(self, names: Iterable[str]) -> list[Callable[[], None]]:
        owners = {owner for name in names for owner in self._owners_of.get(name, ())}
        return [self._owners[owner].on_change for owner in owners]


class WatchedJournals:
    """What one task asks of the watcher: it watches the journals that it asked for last.

    See ``Positions``. ``wake`` is called from other threads when ``of`` may say something else, or
    a probe has ended; it only enqueues.
    """

    def __init__(
        self,
        watcher: PositionWatcher,
        probes: Probes,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._watcher = watcher
        self._probes = probes
        self._wake = wake
        self._journals: frozenset[str] | None = None

    def open(self, spec: FlowSpec) -> None:
        """Journals are where ZooKeeper says, whatever a flow says."""

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        wanted = frozenset(partitions)
        if wanted is not self._journals and wanted != self._journals:
            self._watcher.watch(self, wanted, self._wake)
            self._journals = wanted
        return self._watcher.of(wanted)

    def refresh(self, partitions: Collection[str]) -> None:
        self._watcher.refresh(partitions)

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        probe = self._probes.probe(partition, address, start, end)
        probe.add_done_callback(lambda _: self._wake())
        return probe

    def describe(self, standstill: Standstill) -> str:
        return standstills.describe(standstill)

    def close(self) -> None:
        self._watcher.forget(self)
        self._journals = None
