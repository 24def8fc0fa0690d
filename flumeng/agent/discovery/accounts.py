"""Accounts (ends and acks) of the partitions of all flows of a discovery process. A caller waits
for a bounded time; accounts are reported until they are stale. A silent server delays no other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.journal.log.contract import Position
from flumeng.journal.log.progress_history import ProgressHistory
from flumeng.journal.serving.account import Account
from flumeng.platform import fail_fast
from flumeng.platform.errors import FlumengError, UnavailableError

log = logging.getLogger(__name__)

THREADS = 4
FAILING_THREADS = 2
FRESH_SECONDS = 1.0
WAIT_SECONDS = 0.7
STALE_SECONDS = 60.0
SAMPLE_SECONDS = 15.0
SAMPLE_MOST_SECONDS = 60.0
SAMPLES_A_SECOND = 200.0
"""Most partitions sampled per second, since reading each ack reads a znode."""
TICK_SECONDS = 1.0


@dataclass
class _Flow:
    task: DiscoveryTask
    accounts: Mapping[str, Account] = field(default_factory=dict)
    at: float = float("-inf")
    due: float = 0.0
    every_seconds: float = SAMPLE_SECONDS
    busy: bool = False
    failing: bool = False
    past: ProgressHistory = field(default_factory=ProgressHistory)
    bytes_past: ProgressHistory = field(default_factory=ProgressHistory)


class PartitionAccounts:
    """Reads and caches accounts; see ``flumeng.journal.serving.action_server.Answers``."""

    def __init__(
        self,
        tasks: Callable[[], Mapping[str, DiscoveryTask]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._news = threading.Condition()
        self._flows: dict[str, _Flow] = {}
        self._threads = ThreadPoolExecutor(THREADS, "accounts")
        self._failing_threads = ThreadPoolExecutor(FAILING_THREADS, "accounts-failing")

    def start(self) -> None:
        fail_fast.start("samples", self._sample)

    def positions(self) -> dict[str, Position]:
        return {
            name: Position(account.term, account.floor, account.safe, account.closed)
            for name, account in self.accounts().items()
        }

    def accounts(self) -> dict[str, Account]:
        with self._news:
            flows = self._follow()
            self._refresh(flows.values())
            return {
                f"{name}/{partition}": account
                for name, flow in flows.items()
                if self._clock() - flow.at <= STALE_SECONDS
                for partition, account in flow.accounts.items()
            }

    def of_flows(self, flows: Collection[str]) -> dict[str, Mapping[str, Account]]:
        """Return fresh accounts by flow and partition, without flows that do not answer in time."""
        now = self._clock()
        with self._news:
            running = self._follow()
            asked = {name: running[name] for name in flows if name in running}
            self._refresh(asked.values())
            return {
                name: flow.accounts
                for name, flow in asked.items()
                if flow.at >= now - FRESH_SECONDS
            }

    def _refresh(self, flows: Collection[_Flow]) -> None:
        now = self._clock()
        for flow in flows:
            if now - flow.at > FRESH_SECONDS:
                self._submit(flow)
        self._news.wait_for(lambda: not any(flow.busy for flow in flows), WAIT_SECONDS)

    def offsets(self, flow: str, partitions: list[str], to: str) -> dict[str, int]:
        task = self._tasks().get(flow)
        if task is None:
            raise UnavailableError(f"no discovery task of flow {flow} runs here")
        return task.offsets(partitions, to)

    def _sample(self) -> None:
        while True:
            time.sleep(TICK_SECONDS)
            with self._news:
                for flow in self._follow().values():
                    if flow.due <= self._clock():
                        self._submit(flow)

    def _follow(self) -> Mapping[str, _Flow]:
        """Update and return the running flows; a restarted task begins without accounts."""
        flows, tasks = self._flows, self._tasks()
        self._flows = {
            name: flows[name] if name in flows and flows[name].task is task else _Flow(task)
            for name, task in tasks.items()
        }
        return self._flows

    def _submit(self, flow: _Flow) -> None:
        if not flow.busy:
            flow.busy = True
            threads = self._failing_threads if flow.failing else self._threads
            threads.submit(self._read, flow)

    def _read(self, flow: _Flow) -> None:
        accounts: Mapping[str, Account] | None = None
        try:
            accounts = flow.task.accounts()
        except FlumengError as error:
            log.debug("%s", error)
        finally:
            with self._news:
                self._take(flow, accounts)
                self._news.notify_all()

    def _take(self, flow: _Flow, accounts: Mapping[str, Account] | None) -> None:
        now = self._clock()
        flow.busy, flow.failing = False, accounts is None
        if accounts is not None:
            before = {name: (old.acked, old.safe) for name, old in flow.accounts.items()}
            moved = any(before.get(n) != (new.acked, new.safe) for n, new in accounts.items())
            more = min(SAMPLE_MOST_SECONDS, flow.every_seconds * 2)
            least = max(SAMPLE_SECONDS, len(accounts) / SAMPLES_A_SECOND)
            flow.every_seconds = least if moved else max(least, more)
            flow.accounts = {n: self._noted(flow, n, new) for n, new in accounts.items()}
            flow.past.keep_only(accounts.keys())
            flow.bytes_past.keep_only(accounts.keys())
            flow.at = now
        flow.due = now + flow.every_seconds

    def _noted(self, flow: _Flow, name: str, account: Account) -> Account:
        now = self._clock()
        flow.past.add(name, account.acked, account.safe, now)
        ago = flow.past.minute_ago(name, now)
        if account.unacked_bytes is not None:
            flow.bytes_past.add(name, 0, account.unacked_bytes, now)
            before = flow.bytes_past.minute_ago(name, now)
            account = replace(account, unacked_bytes_minute_ago=before.safe if before else None)
        if ago is None:
            return account
        return replace(account, acked_minute_ago=ago.acked, safe_minute_ago=ago.safe)
