"""The ingest worker's side of the protocol with its node (``agent.node.protocol``). Reconciles the
flows with the last messages, and reports changes of its state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from flumeng.agent.ingest.flow import FlowRunner
from flumeng.agent.ingest.journal_store import Ended, JournalStore
from flumeng.agent.ingest.key_search import KeySearch
from flumeng.agent.ingest.liveness import stay_alive
from flumeng.agent.ingest.measures import Measures
from flumeng.agent.ingest.worker_group import ALONE, WorkerGroup
from flumeng.agent.node.protocol import Assignment, Message
from flumeng.config import Component
from flumeng.config.component import SourceOptions
from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.events.journal_names import flow_of
from flumeng.journal.log.contract import Log
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.journal.serving.access import Granted
from flumeng.journal.serving.server import JournalServer
from flumeng.journal.serving.service import NO_ACTIONS, Actions
from flumeng.platform.errors import FlumengError
from flumeng.platform.metrics.health import Health
from flumeng.platform.security.credentials import Keystore

log = logging.getLogger(__name__)

STATUS_SECONDS = 1.0
SERVER_STOP_SECONDS = 1.0
AWAITS_SECONDS = 0.1
STUCK_SECONDS = 30.0
BLOCKING_CALLS = 16

REPORT_SHARE = 0.05
"""Largest share of the time spent on reports."""


class Worker:
    """Serves the journals at ``address`` and runs the assigned flows. ``send`` may block."""

    def __init__(
        self,
        journal_store: JournalStore,
        address: tuple[str, int],
        send: Callable[[Message], None],
        group: WorkerGroup = ALONE,
        policy: Policy = UNRESTRICTED,
        *,
        granted: Granted | None = None,
        keystore: Keystore | None = None,
        actions: Actions = NO_ACTIONS,
        key_seconds: float = 2.0,
    ) -> None:
        self._actions, self._key_seconds = actions, key_seconds
        self._journal_store = journal_store
        self._replicas = journal_store.replicas
        self._key_search = KeySearch(lambda: journal_store.journals)
        self._group = group
        self._policy = policy
        self._granted = granted or policy.granted
        self._keystore = keystore
        self._address = address
        self._send = send
        self._answers: int | None = None
        self._tasks: dict[str, Assignment] | None = None
        self._chokes: Mapping[str, float] = {}
        self._flows: dict[str, FlowRunner] = {}
        self._acks: dict[str, int] = {}
        """The last ack of each journal; the node sends it once, perhaps before the flow's task."""
        self._delivered: dict[str, int] = {}
        """The acks of the flow itself, of journals that other flows read too."""
        self._quiet = False
        self._reconciling = False
        self._changed = asyncio.Event()
        self._awaits = asyncio.Event()
        self._reported: Message | None = None
        self._orders = OrderedWork(self._changed.set)
        """The node's orders to the journal store, one at a time; the node repeats pending ones."""
        self.health = Health(STUCK_SECONDS)
        self.measures = Measures(lambda: self._flows, journal_store, self._acked)

    async def run(self, messages: asyncio.Queue[Message]) -> None:
        """Run until a ``stop`` message; then commit received events, unless a disk is full."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(BLOCKING_CALLS))
        server = JournalServer(
            *self._address,
            journals=lambda: self._journal_store.journals,
            counters=self._counters,
            acked=self._acked,
            minute_ago=self.measures.minute_ago,
            may_tap=self._policy.may_tap,
            granted=self._granted,
            keystore=self._keystore,
            replicas=self._replicas,
            actions=self._actions,
        )
        self._replicas.start(self._send)
        await asyncio.to_thread(self._send, {"type": "ready", "address": server.address})
        background = [
            asyncio.create_task(work)
            for work in (
                self._report_changes(),
                stay_alive(self._send),
                self._ask_for_deliveries(),
                self._look_for_keys(),
            )
        ]
        while (message := await messages.get())["type"] != "stop":
            self._handle(message)
        background.append(asyncio.create_task(self._tell_deliveries(messages)))
        await self._quiesce()
        for task in background:
            task.cancel()
        await self._report()
        stopping = threading.Thread(target=server.stop, daemon=True)
        stopping.start()
        await asyncio.to_thread(stopping.join, SERVER_STOP_SECONDS)
        await asyncio.to_thread(self._replicas.stop)
        await asyncio.to_thread(self._journal_store.close)

    async def _tell_deliveries(self, messages: asyncio.Queue[Message]) -> None:
        """Pass on deliveries to senders that still wait while the worker stops."""
        while True:
            message = await messages.get()
            if message["type"] == "delivered":
                self._handle(message)

    def _handle(self, message: Message) -> None:
        kind = message["type"]
        if kind == "configure":
            self._answers = message["number"]
            self._on_configure(message["tasks"], message.get("chokes", {}))
            self._changed.set()
        elif kind == "past":
            self._journal_store.earlier.tell(message["seen"], restored=message["restored"])
            self._changed.set()
        elif kind == "acks":
            self._on_acks(message["acks"])
        elif kind == "delivered":
            self._delivered.update(message["acks"])
            for name, offset in message["acks"].items():
                if (flow := self._flows.get(flow_of(name))) is not None:
                    flow.delivered(name, offset)
        elif kind == "remove":
            for name in message["journals"]:
                self._acks.pop(name, None)
                self._delivered.pop(name, None)
                self._orders.do(self._journal_store.remove, name)
            for name in message["flows"]:
                self._orders.do(self._journal_store.forget, name)
        elif kind == "replicas":
            self._orders.do(self._on_replicas, message)
        elif kind == "quiesce":
            self._quiesce()
        else:
            log.error("the node sent a message of unknown type: %s", kind)

    def _on_configure(
        self, tasks: Iterable[Mapping[str, Any]], chokes: Mapping[str, float]
    ) -> None:
        """Set the tasks; draining ones do not run. ``chokes``: node's bytes per second by flow."""
        self._chokes = chokes
        self._tasks = {
            task["flow"]: Assignment.of(task) for task in tasks if task.get("state") != "draining"
        }
        self._reconcile()

    def _acked(self, journal: Log) -> int:
        """Return the journal's ack by its own flow, at least ``journal.acked``. Thread-safe."""
        return max(journal.acked, self._delivered.get(journal.id, 0))

    def _on_acks(self, acks: Mapping[str, int]) -> None:
        others = {}
        self._acks.update(acks)
        for name, ack in acks.items():
            flow = self._flows.get(flow_of(name))
            if flow is None or not flow.trim(name, ack):
                others[name] = ack
        if others:
            self._orders.do(self._trim, others)

    def _trim(self, acks: Mapping[str, int]) -> None:
        for name, ack in acks.items():
            try:
                self._journal_store.trim(name, ack)
            except (FlumengError, OSError) as error:
                text = "journal %s keeps events below %d, though delivered, until its next ack: %s"
                log.error(text, name, ack, error)

    def _on_replicas(self, message: Message) -> None:
        """Apply the memberships of replicated journals. Blocks."""
        self._replicas.set_memberships(message)
        self._key_search.set_texts(message["texts"])
        for name in message["unwanted"]:
            self._replicas.drop(name)
        self._journal_store.serve_led()
        self._journal_store.give_up_superseded(
            {name: Ended(ended["end"], ended["gone"]) for name, ended in message["ended"].items()}
        )
        if self._tasks is not None:
            self._journal_store.close_all_but(frozenset(self._tasks))

    def _quiesce(self) -> asyncio.Future[list[None]]:
        """Stop accepting events; the future is done once all are committed. Journals stay open."""
        self._quiet = True
        flows = list(self._flows.values())
        for flow in flows:
            flow.want(None)
        ended = asyncio.gather(*(flow.finished for flow in flows))
        ended.add_done_callback(lambda _: self._changed.set())
        return ended

    def _reconcile(self) -> None:
        self._reconciling = False
        if self._tasks is None or self._quiet:
            return
        for name, flow in self._flows.items():
            flow.want(self._tasks.get(name))
            flow.limit(self._chokes.get(name))
        for name, task in self._tasks.items():
            if name not in self._flows:
                self._start(name, task)
        self._orders.do(self._journal_store.close_all_but, frozenset(self._tasks))

    def _reconcile_soon(self) -> None:
        if not self._reconciling:
            self._reconciling = True
            asyncio.get_running_loop().call_soon(self._reconcile)

    def _start(self, name: str, task: Assignment) -> None:
        hostname = socket.gethostname()
        flow = FlowRunner(
            task,
            self._journal_store,
            hostname,
            self._changed.set,
            self._group,
            policy=self._policy,
            acked=lambda journal: self._acks.get(journal, 0),
            awaits=self._awaits.set,
        )
        flow.limit(self._chokes.get(name))
        self._flows[name] = flow

        def forget(_: object) -> None:
            del self._flows[name]
            self._changed.set()
            self._reconcile_soon()

        flow.finished.add_done_callback(forget)

    async def _report_changes(self) -> None:
        while True:
            took = await self._report()
            self.health.turned()
            await asyncio.sleep(min(took / REPORT_SHARE, STATUS_SECONDS))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), STATUS_SECONDS)
            self._changed.clear()

    async def _ask_for_deliveries(self) -> None:
        asked: list[str] = []
        while True:
            await self._awaits.wait()
            self._awaits.clear()
            awaited = sorted(filter(None, (flow.awaited for flow in self._flows.values())))
            if awaited != asked:
                asked = awaited
                await asyncio.to_thread(self._send, {"type": "awaits", "journals": awaited})
            await asyncio.sleep(AWAITS_SECONDS)

    async def _look_for_keys(self) -> None:
        while True:
            if await asyncio.to_thread(self._key_search.search):
                self._changed.set()
            await asyncio.sleep(self._key_seconds)

    async def _report(self) -> float:
        began = time.monotonic()
        status = self._status()
        took = time.monotonic() - began
        if status != self._reported:
            self._reported = status
            await asyncio.to_thread(self._send, status)
        return took

    def _counters(self) -> list[dict[str, Any]]:
        """Return a row of counters for each source. Called from threads of the server."""
        return [
            {
                "flow": name,
                "source": _describe(component),
                **asdict(counters),
                "held_by": held.by,
                "held_seconds": round(held.seconds, 1),
                "held_seconds_total": round(held.total_seconds, 1),
            }
            for name, flow in list(self._flows.items())
            for component, counters, held in flow.counters
        ]

    def _status(self) -> Message:
        tasks: dict[str, Any] = {}
        if self._quiet:
            for task in (self._tasks or {}).values():
                tasks[task.key] = {
                    "epoch": task.epoch,
                    "revision": task.revision,
                    "state": "stopped",
                    "error": None,
                    "listen": [],
                }
        for flow in self._flows.values():
            tasks |= flow.status
        journals = {
            name: {
                "flow": flow_of(name),
                "term": journal.term,
                **_end(journal),
                **_replica(journal),
                **({"locked": journal.cipher.problem} if journal.cipher.problem else {}),
            }
            for name, journal in self._journal_store.journals.items()
        }
        kept = self._journal_store.sources.flows()
        return {
            "type": "status",
            "answers": self._answers,
            "tasks": tasks,
            "journals": journals,
            "kept_flows": kept,
            "replicas": self._replicas.replicas,
            "refused": self._journal_store.earlier.refused,
        }


def _end(journal: Log) -> dict[str, bool | int | None]:
    """Return whether and where the journal ended. A replicated one has not while in-sync replicas
    lack events: one of them may lead next and end it earlier, and sources would skip events."""
    leads = isinstance(journal, ReplicatedJournal) and journal.leads
    ended = journal.closed and not (leads and journal.safe < journal.next_seq)
    return {"closed": ended, "end": journal.next_seq if ended else None}


def _replica(journal: Log) -> dict[str, str | bool]:
    """Return the fields of a replicated journal. ``damaged``: another node should lead it."""
    if not isinstance(journal, ReplicatedJournal):
        return {}
    return {
        "replica": journal.replica_id,
        "lineage": journal.lineage,
        "leads": journal.leads,
        "damaged": bool(journal.damaged) or journal.is_older,
    }


def _describe(source: Component[SourceOptions]) -> str:
    claims = source.options.claims()
    return " ".join([source.name, *(what for _, what in claims)])


class OrderedWork:
    """Runs blocking calls one by one in threads. ``done`` is called after each, failed or not."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def do(self, work: Callable[..., None], *args: object) -> None:
        task = asyncio.create_task(self._run(work, args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Callable[..., None], args: tuple[object, ...]) -> None:
        async with self._turn:
            try:
                await asyncio.to_thread(work, *args)
            except (FlumengError, OSError) as error:
                order = f"{work.__name__}{args}"
                text = "the node's order %.200s failed; repeated, at the latest after a restart: %s"
                log.error(text, order, error)
        self._done()
