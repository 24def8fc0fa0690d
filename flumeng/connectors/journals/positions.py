"""Ends of journals: one watch per server, shared by all tasks of the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from flumeng.connectors.api.ranged import Reach
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.ranged.watcher import WatchedEnds
from flumeng.journal.serving import watch_client
from flumeng.journal.serving.watch import WatchAnswer, WatchRequest
from flumeng.platform import fail_fast
from flumeng.platform.errors import CorruptError, UnavailableError
from flumeng.platform.trouble_log import TroubleLog

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Interval of checking for due addresses."""
GATHER_SECONDS = 0.02
"""Tasks that start to watch within this time share a request."""
POLL_SECONDS = 1.0
"""Least time from start to start of watches: an overloaded server ends them early."""
BACKOFF_SECONDS = 0.5
BACKOFF_MOST_SECONDS = 10.0

Follow = Callable[[str, WatchRequest], AsyncGenerator[WatchAnswer, None]]


def pace(servers: int) -> tuple[float, float]:
    """Return the minimum gap between answers and the heartbeat interval of one server, in seconds.
    They limit up to 400 servers together to about 1,000 answers and 40 heartbeats a second."""
    return min(max(0.02, servers / 1000), 0.5), min(max(2.0, servers / 40), 10.0)


def backoff_seconds(failures: int) -> float:
    """Return the pause after this number of consecutive failures."""
    return float(min(BACKOFF_SECONDS * 2 ** min(failures - 1, 10), BACKOFF_MOST_SECONDS))


@dataclass(eq=False)
class _Server:
    """The watch of one server. ``answered``: the watch has answered. ``again``: replace the watch
    although ``names`` are the same."""

    address: str
    names: frozenset[str]
    answered: bool = False
    again: bool = False
    failures: int = 0
    trouble: TroubleLog = field(default_factory=lambda: TroubleLog(log), repr=False)
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class PositionWatcher(WatchedEnds[Reach]):
    """Watcher of all servers of watched journals, in one thread. Silent servers delay only their
    own journals, which then have no known end. ``follow`` watches one server."""

    def __init__(self, addresses: Addresses, follow: Follow = watch_client.watch) -> None:
        super().__init__()
        self.poll_seconds = POLL_SECONDS
        self._addresses = addresses
        self._follow = follow
        self._closing = False
        self._gathering = False
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        # Used only by the watcher's thread:
        self._servers: dict[str, _Server] = {}
        self._missing: set[str] = set()
        self._reader = ThreadPoolExecutor(1, "addresses")
        self._reading = False
        self._thread = fail_fast.start("positions", self._run)

    def close(self) -> None:
        """End all watches; blocks until the watcher's thread has ended."""
        self._closing = True
        self._call(self._wake.set)
        self._thread.join()

    def _on_owners(self) -> None:
        """Adapt the watches soon, once for all changes until then."""
        if not self._gathering:
            self._gathering = True
            self._call(self._wake.set)

    def _on_refresh(self, partitions: Collection[str]) -> None:
        self._call(self._watch_again, frozenset(partitions))

    def _call(self, act: Callable[..., None], *given: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act, *given)

    # All methods below run in the watcher's thread.

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._work())

    async def _work(self) -> None:
        while not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(GATHER_SECONDS)
                self._gathering = False
                self._arrange()
            self._check_addresses()
        for server in self._servers.values():
            self._stop(server)
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _check_addresses(self) -> None:
        self._addresses.doubt(self._missing)
        due = self._addresses.due(self._watched())
        if due and not self._reading:
            self._reading = True
            self._reader.submit(self._addresses.reread, due).add_done_callback(self._on_read)

    def _on_read(self, changed: Future[bool]) -> None:
        self._reading = False
        if not changed.cancelled() and changed.result():
            self._call(self._wake.set)

    def _arrange(self) -> None:
        watched = self._watched()
        self._addresses.retain(watched)
        self._missing &= watched
        servers = self._addresses.of(watched)
        names: defaultdict[str, set[str]] = defaultdict(set)
        for name, address in servers.items():
            names[address].add(name)
        self._lose([n for n, reach in list(self._ends.items()) if servers.get(n) != reach.address])
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

    def _watch_again(self, journals: frozenset[str]) -> None:
        for server in self._servers.values():
            if server.names & journals:
                server.again = True
                self._replace(server)

    def _replace(self, server: _Server) -> None:
        """Replace the watch; one that has not answered yet is replaced after its first answer."""
        if server.answered:
            self._stop(server)
            self._start(server)

    def _start(self, server: _Server) -> None:
        server.answered = False
        server.task = self._loop.create_task(self._keep_watch(server), name=server.address)

    def _stop(self, server: _Server) -> None:
        if server.task is not None:
            server.task.cancel()

    async def _keep_watch(self, server: _Server) -> None:
        while True:
            began = self._loop.time()
            try:
                replaced = await self._watch_once(server)
            except UnavailableError as error:
                self._on_away(server, str(error))
            except CorruptError as error:
                self._on_nonsense(server, str(error))
            except Exception as error:
                self._on_nonsense(server, f"{type(error).__name__}: {error}", error)
            else:
                if not replaced:
                    await asyncio.sleep(began + self.poll_seconds - self._loop.time())
                continue
            server.answered = False
            await asyncio.sleep(backoff_seconds(server.failures))

    async def _watch_once(self, server: _Server) -> bool:
        """Follow the server's answers. Returns True when a new watch has to replace this one."""
        names, number = server.names, next(self._requests)
        server.answered = server.again = False
        gap, heartbeat = pace(len(self._servers))
        request = WatchRequest(tuple(names), gap_seconds=gap, heartbeat_seconds=heartbeat)
        async with contextlib.aclosing(self._follow(server.address, request)) as answers:
            async for answer in answers:
                self._on_answer(server, number, answer)
                if server.again or server.names != names:
                    return True
        return False

    def _on_answer(self, server: _Server, number: int, answer: WatchAnswer) -> None:
        server.trouble.end("journal server %s answers again", server.address)
        server.answered, server.failures = True, 0
        self._missing -= answer.positions.keys()
        self._missing.update(answer.not_served)
        self._lose(answer.not_served)
        reaches = {
            name: Reach(
                server.address,
                position.safe,
                position.held,
                floor=position.floor,
                closed=position.closed,
                full=position.full,
                term=position.term,
            )
            for name, position in answer.positions.items()
        }
        self._learn(reaches, number)

    def _on_away(self, server: _Server, why: str) -> None:
        self._fail(server, logging.WARNING, why)
        self._missing |= server.names
        self._lose(server.names)

    def _on_nonsense(self, server: _Server, why: str, cause: Exception | None = None) -> None:
        self._fail(server, logging.ERROR, why, cause)
        trouble = Reach(server.address, 0, trouble=why)
        self._learn(dict.fromkeys(server.names, trouble), next(self._requests))

    def _fail(self, server: _Server, level: int, why: str, cause: Exception | None = None) -> None:
        text = "journals of server %s are not read, it is asked again: %s"
        server.trouble.log(level, text, server.address, why, cause=cause, kind=level)
        server.failures += 1
