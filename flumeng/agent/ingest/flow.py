"""One flow in this worker: reconciles its journal and sources with its task. Sources with unchanged
options keep running, and the journal stays open when the spec changes. Failures are retried, and
affect no other flow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flumeng.agent.ingest.back_pressure import BackPressure, Held
from flumeng.agent.ingest.journal_appender import JournalAppender
from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.source_runner import SourceRunner
from flumeng.agent.ingest.source_states import NotedState
from flumeng.agent.ingest.worker_group import ALONE, WorkerGroup, spreads
from flumeng.agent.node.protocol import Assignment
from flumeng.config import FlowSpec, parse_flow, registry
from flumeng.config.component import Component, SourceOptions
from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.connectors.api.counters import Counters, total
from flumeng.connectors.api.deliveries import Deliveries
from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.journal.log.checkpoint import Durability
from flumeng.journal.log.contract import Appendable
from flumeng.journal.log.encryption import Keyring
from flumeng.journal.log.limits import MAX_BYTES, MEMORY_BYTES, Limits, size_text
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.platform.backoff import Backoff
from flumeng.platform.errors import FlumengError
from flumeng.platform.rate_limit import RateLimit
from flumeng.platform.trouble_log import TroubleLog

log = logging.getLogger(__name__)

DRAIN_SECONDS = 2.0
RETRY_MOST_SECONDS = 30.0
JOURNAL, CHOKE = "journal", "choke"


class FlowJournal(Protocol):
    """A journal that only one flow appends to, from ``take`` to ``give_back``."""

    @property
    def appendable(self) -> Appendable[Any]: ...

    def fits(self, spec: FlowSpec) -> bool:
        """Return whether the journal suits this ``spec``; if so, adopt the limits of the spec."""

    def give_back(self, acked: int, *, failed: bool) -> None:
        """Release the journal after the last append; a ``failed`` one is reopened later."""


def take(
    store: JournalStore, flow: str, spec: FlowSpec, policy: Policy = UNRESTRICTED
) -> FlowJournal:
    """Return the flow's journal, in Kafka or on this node. Raises CorruptError, UnavailableError,
    UserError, OSError."""
    if spec.journal.kafka is not None:
        part = Component("journal", "kafka", spec.journal.kafka)
        policy.require(part)
        cls = registry.get("journal", part.name).implementation_class()  # loads librdkafka
        journal: FlowJournal = cls(flow, part.options)
        store.close_of(flow)
        return journal
    return OnNode(store, flow, spec)


class OnNode:
    def __init__(self, store: JournalStore, flow: str, spec: FlowSpec) -> None:
        self._store = store
        durability, limits = _promised(spec)
        self._encryption = spec.journal.encryption
        keyring = None
        if self._encryption is not None:
            keyring = Keyring.resolve(self._encryption.references)
        self._journal = store.take(flow, durability, limits, keyring)
        self._keep_to(spec, limits)

    @property
    def appendable(self) -> Appendable[Any]:
        return self._journal

    def fits(self, spec: FlowSpec) -> bool:
        durability, limits = _promised(spec)
        if spec.journal.kafka is not None or self._journal.durability != durability:
            return False
        if spec.journal.encryption != self._encryption:
            return False
        self._keep_to(spec, limits)
        return True

    def _keep_to(self, spec: FlowSpec, limits: Limits) -> None:
        self._journal.limits = limits
        if isinstance(self._journal, ReplicatedJournal):
            self._journal.require_in_sync(spec.replicas.min_in_sync)

    def give_back(self, acked: int, *, failed: bool) -> None:
        try:
            self._store.give_back(self._journal, failed=failed)
            self._store.trim(self._journal.id, acked)
        except (FlumengError, OSError) as error:
            log.error("journal %s is not trimmed until its next ack: %s", self._journal.id, error)


def _promised(spec: FlowSpec) -> tuple[Durability, Limits]:
    default = MEMORY_BYTES if spec.durability == "memory" else MAX_BYTES
    options = spec.journal
    limits = Limits(options.max_bytes or default, options.retain_seconds, options.retain_bytes)
    return spec.durability, limits


class FlowRunner:
    """Runs a flow's task until ``want(None)`` is carried out; then the journal is released and
    ``finished`` is done.

    ``changed`` is called when ``status`` may differ, ``awaits`` when ``awaited`` may. ``counted``:
    counters by source type; the list is replaced, never changed, since other threads read it.
    ``acked`` returns the last ack of a journal, perhaps from before this runner.
    """

    def __init__(
        self,
        task: Assignment,
        journal_store: JournalStore,
        hostname: str,
        changed: Callable[[], None],
        group: WorkerGroup = ALONE,
        *,
        policy: Policy = UNRESTRICTED,
        acked: Callable[[str], int] = lambda _: 0,
        awaits: Callable[[], None] = lambda: None,
        retry_seconds: float = 1.0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._assigned: Assignment | None = task
        self._tried: Assignment | None = None
        self._journal_store = journal_store
        self._hostname = hostname
        self._changed = changed
        self._group = group
        self._policy = policy
        self._acked = acked
        self._awaits = awaits
        self._journal: FlowJournal | None = None
        self._appender: JournalAppender | None = None
        self._deliveries = Deliveries()
        self._noted: NotedState | None = None
        self._sources: list[SourceRunner] = []
        self.counted: list[tuple[str, Counters]] = []
        self._gone: dict[str, Counters] = {}
        self._pressure = BackPressure()
        self._node_rate: float | None = None
        self._rate_limit: RateLimit | None = None
        self._choked: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None
        self._error: str | None = None
        self._retries = TroubleLog(log)
        self._backoff = Backoff(retry_seconds, RETRY_MOST_SECONDS)
        self._wake = asyncio.Event()
        self.finished = asyncio.create_task(self._run())

    def want(self, task: Assignment | None) -> None:
        """Set the task to run; None stops the sources and commits their received events."""
        if task != self._assigned:
            self._assigned = task
            self._wake.set()

    @property
    def status(self) -> dict[str, dict[str, Any]]:
        """The status of the last task tried; empty while it is starting."""
        task = self._tried
        problems = [source.problem for source in self._sources if source.problem]
        running = not self._error and all(source.running for source in self._sources)
        if task is None or not (running or self._error or problems):
            return {}
        status = {
            "epoch": task.epoch,
            "revision": task.revision,
            "state": "running" if running else "failed",
            "error": self._error or "; ".join(problems) or None,
            "listen": [address for source in self._sources for address in source.addresses],
        }
        return {task.key: status}

    @property
    def counters(self) -> list[tuple[Component[SourceOptions], Counters, Held]]:
        now = self._now()
        held = self._pressure.held(now)
        if held.by and self._appender is not None:
            held = held._replace(by=self._appender.held_by or held.by)
        return [
            (source.component, source.counters, held if held.by else source.held(now, held))
            for source in self._sources
        ]

    def limit(self, node_rate: float | None) -> None:
        """Limit the bytes per second that the node may receive of this flow; None for no limit."""
        if node_rate != self._node_rate:
            self._node_rate = node_rate
            self._set_choke()

    def trim(self, journal: str, ack: int) -> bool:
        """Drop acked events. Returns False when this flow does not append to that journal."""
        if self._appender is None or self._appender.journal.id != journal:
            return False
        self._appender.trim(ack)
        return True

    @property
    def awaited(self) -> str | None:
        """The flow's journal when senders wait until its events are delivered, else None."""
        if self._appender is None or not self._deliveries.awaited:
            return None
        return self._appender.journal.id

    def delivered(self, journal: str, offset: int) -> None:
        if self._appender is not None and self._appender.journal.id == journal:
            self._deliveries.acked(offset)

    async def _run(self) -> None:
        while self._assigned is not None:
            self._wake.clear()
            task = self._assigned
            try:
                await self._apply(task)
            except Exception as error:
                self._note(task, error)
                if self._failure is not None:
                    await self._let_go()
                await self._backoff.wait(self._wake)
            else:
                self._retries.end("flow %s can receive events here again", task.flow)
                self._tried, self._error = task, None
                self._backoff.reset()
                self._changed()
                await self._wake.wait()
        await self._let_go()

    async def _apply(self, task: Assignment) -> None:
        """Reconcile the journal and sources with the task. A new epoch restarts all sources."""
        if self._failure is not None:
            raise self._failure
        spec = parse_flow(task.spec)
        components = [c for c in spec.pinned if self._group.runs(c)]
        if self._journal is not None and not self._journal.fits(spec):
            await self._let_go()
        if self._appender is None and components:
            self._noted = await asyncio.to_thread(self._journal_store.sources.noted, task.flow)
            self._journal = await asyncio.to_thread(
                take, self._journal_store, task.flow, spec, self._policy
            )
            journal = self._journal.appendable
            self._appender = JournalAppender(journal, self._on_pressure, self._on_failed)
            self._appender.trim(self._acked(journal.id))
            self._deliveries = Deliveries(self._awaits)
        if self._appender is not None:
            self._appender.set_group(spec.journal.group_seconds, spec.journal.group_bytes)
        reassigned = self._tried is not None and self._tried.epoch != task.epoch
        kept = [] if reassigned else components
        await self._stop([source for source in self._sources if source.component not in kept])
        running = [source.component for source in self._sources]
        for component in components:
            if component not in running:
                assert self._appender is not None
                assert self._noted is not None
                source = self._make_source(component, self._appender, self._noted)
                self._sources.append(source)
        self._set_choke()

    def _make_source(
        self, component: Component[SourceOptions], appender: JournalAppender, noted: NotedState
    ) -> SourceRunner:
        async def settled_state() -> Mapping[str, object]:
            await appender.drain(DRAIN_SECONDS)
            journaled = appender.journal.state
            await asyncio.to_thread(noted.note, {}, journaled)
            return {**noted.state, **journaled}

        def note(changes: Mapping[str, object]) -> None:
            noted.note(changes, appender.durable_keys)

        def submit(block: ReceivedBlock, counters: Counters) -> None:
            appender.submit(block, counters)
            self._charge(block.received_bytes)

        source = SourceRunner(
            f"source {component.name} of journal {appender.journal.id}",
            component,
            self._hostname,
            self._group,
            self._policy,
            submit=submit,
            settled_state=settled_state,
            changed=self._changed,
            held_by=lambda: appender.held_by,
            note=note,
            deliveries=self._deliveries,
        )
        self.counted = [*self.counted, (component.name, source.counters)]
        if self._pressure.paused:
            source.pause()
        return source

    async def _stop(self, sources: Sequence[SourceRunner]) -> None:
        await asyncio.gather(*(source.stop() for source in sources))
        self._sources = [source for source in self._sources if source not in sources]
        if sources and self._appender is not None:
            self._appender.when_settled(lambda: self._sum_up(sources))

    def _sum_up(self, sources: Sequence[SourceRunner]) -> None:
        """Add up the counters of stopped sources by type, once all their events are counted."""
        before = list(self._gone.values())
        for source in sources:
            kind = source.component.name
            self._gone[kind] = total([self._gone.get(kind, Counters()), source.counters])
        summed = [*before, *(source.counters for source in sources)]
        rest = [row for row in self.counted if not any(row[1] is gone for gone in summed)]
        self.counted = [*self._gone.items(), *rest]

    async def _let_go(self) -> None:
        await self._stop(self._sources)
        if self._appender is None:
            return
        appender, self._appender = self._appender, None
        try:
            await appender.drain(DRAIN_SECONDS)
        except FlumengError as error:
            log.error("%s; received events are lost unless their senders still have them", error)
        await appender.stop()
        journal, self._journal = self._journal, None
        failed = self._failure is not None
        assert journal is not None
        await asyncio.to_thread(journal.give_back, appender.acked, failed=failed)
        self._failure = None
        self._pressure.release(JOURNAL, self._now())

    def _set_choke(self) -> None:
        """Apply the rate limit; a flow with sources in all workers divides it among them."""
        rate = self._node_rate
        if rate is not None and any(spreads(source.component) for source in self._sources):
            rate /= self._group.size
        if rate == (self._rate_limit.rate if self._rate_limit else None):
            return
        if self._choked is not None:
            self._choked.cancel()
        self._rate_limit = RateLimit(rate, self._now()) if rate is not None else None
        self._resume(CHOKE)

    def _charge(self, nbytes: int) -> None:
        wait = self._rate_limit.take(nbytes, self._now()) if self._rate_limit else 0.0
        if wait > 0.0:
            if self._choked is not None:
                self._choked.cancel()
            self._choked = self._loop.call_later(wait, self._resume, CHOKE)
            assert self._rate_limit is not None
            self._pause(CHOKE, f"rate limit: {size_text(int(self._rate_limit.rate))} a second")

    def _on_pressure(self, pressure: bool) -> None:
        appender = self._appender
        if not pressure or appender is None:
            self._resume(JOURNAL)
            return
        behind = f"journal behind: {size_text(appender.pending_bytes)} of events wait for the disk"
        self._pause(JOURNAL, appender.held_by or behind)

    def _pause(self, reason: str, text: str) -> None:
        was = self._pressure.paused
        self._pressure.hold(reason, text, self._now())
        if not was:
            for source in self._sources:
                source.pause()

    def _resume(self, reason: str) -> None:
        was = self._pressure.paused
        self._pressure.release(reason, self._now())
        if was and not self._pressure.paused:
            for source in self._sources:
                source.resume()

    def _now(self) -> float:
        return self._loop.time()

    def _on_failed(self, error: Exception) -> None:
        self._failure = error
        self._wake.set()

    def _note(self, task: Assignment, error: Exception) -> None:
        text = str(error) or type(error).__name__
        sentence = "flow %s cannot receive events here, retrying: %s"
        self._retries.log(logging.ERROR, sentence, task.flow, text, cause=error)
        self._tried, self._error = task, text
        self._changed()
