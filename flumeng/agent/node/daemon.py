"""The node's main loop: takes events, decides in the machine, acts, publishes."""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from flumeng.agent.node import events
from flumeng.agent.node.claim import SupplantedError
from flumeng.agent.node.data_directory import FLOWS, REPLICAS, DataDirectory, KnownNames
from flumeng.agent.node.event_publisher import EventPublisher
from flumeng.agent.node.events import Event, Instruction
from flumeng.agent.node.machine import Machine
from flumeng.agent.node.poll_backoff import PollBackoff
from flumeng.agent.node.process import ChildProcess
from flumeng.agent.node.registration import HeldError, Identity, Registration
from flumeng.agent.node.replicated_journals import CurrentTexts, ReplicatedJournals
from flumeng.agent.node.running_jobs import RunningJobs
from flumeng.agent.node.settings import Settings, command_of
from flumeng.config import policy
from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.config.policy_file import PolicyFile
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore
from flumeng.events import journal_names as names
from flumeng.platform import processes
from flumeng.platform.errors import (
    ConflictError,
    CorruptError,
    FlumengError,
    ForbiddenError,
    UnavailableError,
    UserError,
)
from flumeng.platform.java import find_java
from flumeng.platform.metrics import table
from flumeng.platform.metrics.channel import Channel
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.table import Reading
from flumeng.platform.processes import PYTHON
from flumeng.platform.rate_limited_log import RateLimitedLog
from flumeng.platform.security import process
from flumeng.platform.security.expiry import Expiry, utc_now
from flumeng.platform.watchdog import Watchdog
from zkschema import paths
from zkschema.records import COLLECT, NodeStatus

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
ACKS_SECONDS = 1.0
DELIVERED_SECONDS = 0.1
DELIVERED_SHARE = 0.05
DELIVERED_MOST_SECONDS = 1.0
LOOK_SECONDS = 10.0
ALL_SECONDS = 300.0
RETRY_SECONDS = 0.5
HELD_SESSIONS = 3
"""How many session time-outs to wait for a live process of the same name to end."""
CLAIM_RETRY_SECONDS = 0.05
CLAIM_SECONDS = 3.0
"""Seconds that a start waits for ZooKeeper to confirm the claim."""
NAMES = 5
STUCK_SECONDS = 60.0
"""A longer pass of the main loop counts as hung: calls to ZooKeeper have far lower limits."""


class Node:
    """A node's main loop. ``stop``, ``hear`` are thread-safe. ``allowed``: its policy file."""

    def __init__(
        self,
        settings: Settings,
        home: DataDirectory,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        *,
        allowed: Policy = UNRESTRICTED,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._home = home
        self._store = store
        identity = Identity(
            settings.name,
            home.identity(),
            settings.roles,
            settings.zone,
            settings.labels or {},
            settings.capacity or {},
        )
        self._znodes = Registration(store, identity, home, allowed.signers, clock)
        self._journals = self._znodes.journals
        self._expiry = Expiry(clock, utc_now)
        self._policy_file = PolicyFile(settings.policy, allowed, clock)
        self._machine = Machine(
            settings.roles, clock, settings.workers, settings.limits, warm=settings.warm_collector
        )
        self._replicated = ReplicatedJournals(
            home,
            self._machine,
            self._journals,
            CurrentTexts(store, self._znodes.trusts, clock),
            me=settings.name,
            remember=lambda present, local: self._remember(REPLICAS, present, local),
            is_same_tree=lambda: self._require_cluster() == self._generation,
            clock=clock,
        )
        self._storyteller = EventPublisher(store, settings.name, clock, time.time)
        self._children: dict[str, ChildProcess] = {}
        self._killed: set[str] = set()
        self._status = NodeStatus(assignment_version=-1)
        self.channels: dict[str, Channel] = {}
        self.health = Health(STUCK_SECONDS, clock)
        self.health.needs(self._unready)
        self._znodes.znodes.on_progress = self.health.turned
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._applied: events.Assigned | None = None
        self._kept: events.Assigned | None = None
        self._acks_at = self._look_at = self._all_at = self._tick_at = 0.0
        self._delivered_at = 0.0
        self._reported = -1
        self._held_since = 0.0
        self._ack_polls, self._flow_polls = PollBackoff(clock), PollBackoff(clock)
        self._generation = 0
        self._known = {file: home.known_names(file) for file in (FLOWS, REPLICAS)}
        self._running_jobs = RunningJobs(home.path)
        self._running_jobs.take()
        self._unknown: set[str] = set()
        self._past = events.Past(dict.fromkeys(home.journals()), home.run_mark.is_foreign)
        self._exit = self._registered = self._stopping = False
        self._session = 0
        self._is_ours = False
        self._logged, self._save_failures = "", RateLimitedLog(log)
        self._troubles: dict[str, str] = {}
        me = settings.name
        for path in (paths.assignment(me), paths.live_node(me), paths.schema()):
            store.watch(path, lambda _: self._refresh_soon())
        store.on_session(self._on_session)

    def run(self) -> None:
        """Run until ``stop``, then until every child has ended. No child starts before the claim on
        the name is confirmed, or ``CLAIM_SECONDS`` have passed with no other holder."""
        began = self._clock()
        self.health.turned()
        while not (self._registered or self._stopping):
            if not self._held_since and self._clock() > began + CLAIM_SECONDS:
                break
            self._try_claim()
            self.health.turned()
        if self._stopping:
            return
        self.begin()
        while not self._exit:
            self.turn()
        with contextlib.suppress(OSError):  # the next start uses this directory
            self._home.run_mark.clear()

    def _try_claim(self) -> None:
        try:
            if self._store.connected:
                self._require_cluster()
                self._znodes.register()
                self._registered = True
                return
            if self._held_since:
                self._held_since = self._clock()
        except HeldError as error:
            self._say(self._wait_for_holder(error))
        except (ConflictError, UnavailableError, CorruptError) as error:
            self._say(f"this node is not registered yet: {error}")
        time.sleep(CLAIM_RETRY_SECONDS)

    def begin(self) -> None:
        """Start with the assignment stored on disk, with or without ZooKeeper."""
        self._look_back()
        if not self._past.restored:
            self._mark_running()
        self._kept = self._home.kept()
        if self._kept is not None:
            self._apply(self._kept)

    def _look_back(self) -> None:
        """Read the acks of local journals. A journal whose ack is unknown accepts no events."""
        unknown = [name for name, offset in self._past.seen.items() if offset is None]
        try:
            if unknown and self._store.connected:
                self._require_cluster()
                seen = self._journals.seen(unknown)
                self._past = replace(self._past, seen={**self._past.seen, **seen})
        except FlumengError as error:
            log.warning("cannot read journals' acks, retrying; flows begin new journals: %s", error)
        self._act(self._machine.handle(self._past))

    def _mark_running(self) -> None:
        try:
            self._home.run_mark.set()
        except OSError as error:
            log.warning("cannot mark the data directory, copies may be taken for it: %s", error)

    def _settle_past(self) -> None:
        """Replace the copied mark of a restored directory once no local journal can lack events."""
        if self._past.restored and self._machine.has_settled_past:
            self._past = replace(self._past, restored=False)
            self._mark_running()
            self._act(self._machine.handle(self._past))

    def turn(self) -> None:
        """Wait for an event or a tick, handle all pending events and publish the result."""
        self._handle(self._next_event())
        for _ in range(self._events.qsize()):
            self._handle(self._next_event())
        if self._clock() >= self._tick_at:
            self._handle(events.Tick())
        self._settle_past()
        self._publish()
        self.health.turned()

    def stop(self) -> None:
        self._stopping = True
        self.hear(events.Stop(self._settings.drain_seconds))

    def hear(self, event: Event) -> None:
        self._events.put(event)

    def _next_event(self) -> Event:
        seconds = TICK_SECONDS
        if self._machine.awaited and (left := self._delivered_at - self._clock()) > 0.0:
            seconds = min(seconds, left)
        try:
            return self._events.get(timeout=seconds) or events.Tick()
        except queue.Empty:
            return events.Tick()

    def _handle(self, event: Event) -> None:
        if isinstance(event, events.Tick):
            self._tick_at = self._clock() + TICK_SECONDS
        elif isinstance(event, events.Ended):
            self._killed.discard(event.child)
        self._act(self._machine.handle(event))

    def _act(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, events.Start):
                self._start(instruction.child)
            elif isinstance(instruction, events.Tell):
                self._children[instruction.child].tell(instruction.message)
            elif isinstance(instruction, events.Kill):
                self._kill(instruction.child, instruction.why)
            else:
                assert isinstance(instruction, events.Exit)
                self._exit = True

    def _kill(self, child: str, why: str) -> None:
        """Kill a child. Called again until the child ends, and logged once."""
        if child not in self._killed:
            log.warning("process %s is killed: %s", child, why)
        self._killed.add(child)
        self._children[child].kill()

    def _start(self, child: str) -> None:
        spark = self._machine.children[child].spark
        command = command_of(child, self._settings, self._home.path, spark)
        try:
            self._children[child] = self._spawn(child, command)
        except (OSError, RuntimeError) as error:  # no room for a process, a thread, a descriptor
            log.warning("process %s cannot be started, retrying: %s", child, error)
            self._handle(events.Ended(child, -1, why=f"cannot be started: {error}"))
        else:
            log.info("process %s started, pid %d", child, self._children[child].pid)

    def _spawn(self, child: str, command: list[str]) -> ChildProcess:
        if not self._settings.measured:
            return ChildProcess(child, [*PYTHON, *command], self._hear_child)
        channel = self.channels[child] = Channel(child)
        command = [*PYTHON, *command, "--metrics-channel", str(channel.descriptor)]
        try:
            return ChildProcess(child, command, self._hear_child, [channel.descriptor])
        finally:
            channel.child_started()

    def readings(self) -> Iterator[Reading]:
        """Yield the node's metrics. Thread-safe."""
        for name, child in self._machine.children.items():
            yield table.CHILD_STARTS.of(child.starts, name)
            yield table.CHILD_HANGS.of(child.hangs, name)
        for task in self._status.tasks.values():
            yield table.TASKS.of(1, task.state)

    def _unready(self) -> str | None:
        if not self._store.connected:
            return "ZooKeeper is not connected"
        if not self._registered:
            return "not registered yet"
        waiting = self._machine.not_running
        return f"{', '.join(waiting)} not running" if waiting else None

    def _hear_child(self, event: Event) -> None:
        if isinstance(event, events.Ended):
            if event.code != 0:
                log.warning("process %s ended with exit code %d", event.child, event.code)
            if event.child == COLLECT:
                event = replace(event, running=self._running_jobs.take())
        self.hear(event)

    def _publish(self) -> None:
        """Bring ZooKeeper up to date; a failure is retried in a later pass. Journals are written
        before the status: a reader of an ended flow's status also finds its journals."""
        if not self._store.connected:
            if self._held_since:
                self._held_since = self._clock()
            self._say("waiting for ZooKeeper; accepted events stay in the journals")
            return
        try:
            self._attempt_all()
        except UnavailableError as error:
            self._look_at = 0.0
            self._say(f"waiting for ZooKeeper: {error}")
            return
        trouble = next(filter(None, self._troubles.values()), "")
        self._say(trouble or f"this node is registered as {self._settings.name}")

    def _attempt_all(self) -> None:
        """Do the work that is due. Only ``_refresh`` writes before the name is confirmed."""
        looks = self._clock() >= self._look_at or self._session != self._store.session
        if looks:
            self._attempt("report its state", self._refresh)
        if self._is_ours and (looks or self._reported != self._machine.changes):
            self._attempt("report its state", self._report)
        if self._is_ours:
            self._attempt("write the event log", self._tell_story)
        if self._is_ours and self._machine.proposals:
            self._attempt("change replica sets", self._replicated.ask_for_changes)
        if self._registered and self._replicated.due:
            self._attempt("scan replicas", self._scan_replicas)
        if self._registered and self._clock() >= self._acks_at:
            self._attempt("remove collected journals", self._clear_up)
        if self._registered and self._machine.awaited and self._clock() >= self._delivered_at:
            self._attempt("read delivered offsets", self._ask_for_deliveries)

    def _attempt(self, what: str, work: Callable[[], None]) -> None:
        """Do ``work`` and record a failure, such as a refusal. Raises UnavailableError without an
        answer and, if fatal, UserError."""
        trouble = ""
        try:
            work()
        except ConflictError as conflict:
            self._znodes.reread()
            self._look_at = min(self._look_at, self._clock() + RETRY_SECONDS)
            trouble = f"cannot {what} now, retrying: {conflict}"
        except HeldError as error:
            trouble = self._wait_for_holder(error)
        except (CorruptError, ForbiddenError, UserError) as error:
            if isinstance(error, SupplantedError if self._registered else UserError):
                raise
            trouble = f"cannot {what}: {error}"
        self._troubles[what] = trouble
        self.health.turned()

    def _wait_for_holder(self, error: HeldError) -> str:
        """Return the reason for waiting for the end of another session of this name. Raises
        SupplantedError when that session does not end."""
        self._look_at = self._clock() + RETRY_SECONDS
        self._held_since = self._held_since or self._clock()
        if self._clock() - self._held_since > HELD_SESSIONS * self._settings.session_seconds:
            raise SupplantedError(
                f"{error}. That process still runs, and two processes cannot have one name. If "
                f"{self._home.path} is a copy of its data directory, start this node with another "
                "--name and an empty --data"
            ) from error
        return f"waiting: {error}"

    def _tell_story(self) -> None:
        self._storyteller.tell(self._machine.story, at_once=self._exit)

    def _report(self) -> None:
        machine, changes = self._machine, self._machine.changes
        self._znodes.announce(
            machine.addresses, machine.discovery, machine.collector, machine.gateway
        )
        journals = self._machine.journals
        if journals is not None:
            self._journals.enter(journals)
            if any("replica" in journal for journal in journals.values()):
                self._replicated.scan_soon()
        status = self._machine.status
        problems = {
            **self._znodes.znodes.problems,
            **self._replicated.problems,
            **self._home.problems,
            **self._unknown_flows(),
            **self._expiry.problems(),
            **self._policy_file.problems(),
        }
        self._status = replace(status, problems={**status.problems, **problems})
        self._znodes.report(self._status)
        self._reported = changes

    def _unknown_flows(self) -> dict[str, str]:
        if not self._unknown:
            return {}
        names = ", ".join(sorted(self._unknown)[:NAMES])
        why = (
            f"journals or source states of {len(self._unknown)} unknown flows are kept ({names}): "
            "no record shows that the flows were deleted. Apply them again to collect their "
            "journals; delete them after that to drop the journals"
        )
        return {"unknown flows": why}

    def _clear_up(self) -> None:
        """Send workers acks, remove unneeded journals and state; poll idle journals less often."""
        self._acks_at = self._clock() + ACKS_SECONDS
        local = self._machine.journals
        if local is None:
            return
        names = self._ack_polls.due(self._journals.registered)
        acked = self._journals.acks(names) if names else events.Acked({})
        for name in names:
            self._ack_polls.seen(name, (acked.acks.get(name), acked.delivered.get(name)))
        flows, journals = self._deleted(local)
        unneeded = tuple(dict.fromkeys([*acked.unneeded, *journals]))
        acked = replace(acked, unneeded=unneeded, gone_flows=flows)
        if acked.unneeded or acked.gone_flows:
            self._require_cluster()
            self._ack_polls.soon(acked.unneeded)
        self._act(self._machine.handle(acked))
        if self._is_ours and self._machine.knows_all_journals:
            self._journals.clear_up(acked.unneeded, local)

    def _scan_replicas(self) -> None:
        assigned = self._applied.assignment.journals if self._applied else {}
        scan = self._replicated.scan(
            assigned, lambda message: self._act(self._machine.handle(events.Replicas(message)))
        )
        if scan is not None and self._is_ours and self._machine.knows_all_journals:
            self._replicated.settle(scan)

    def _ask_for_deliveries(self) -> None:
        began = self._clock()
        acks = self._journals.delivered(self._machine.awaited)
        now = self._clock()
        pause = max(DELIVERED_SECONDS, (now - began) / DELIVERED_SHARE)
        self._delivered_at = now + min(pause, DELIVERED_MOST_SECONDS)
        self._act(self._machine.handle(events.Delivered(acks)))

    def _deleted(self, local: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, ...], list[str]]:
        kept = self._machine.kept_flows
        registered = self._journals.registered
        flows = {*kept, *(journal.value.flow for journal in registered.values())}
        flows.update(journal["flow"] for journal in local.values())
        asked = self._flow_polls.due(flows)
        if not asked:
            return (), []
        absent = self._znodes.absent(asked)
        present = set(asked).difference(absent)
        assigned = {task.flow for task in self._applied.assignment.tasks} if self._applied else ()
        names = self._remember(FLOWS, present, flows.union(assigned))
        deleted = names.deleted(absent)
        self._unknown -= present
        self._unknown &= flows
        self._unknown.update(set(absent).difference(deleted))
        for flow in asked:
            self._flow_polls.seen(flow, flow in present)
        if deleted and self._require_cluster() != names.generation:
            return (), []  # the tree was restored meanwhile
        journals = [n for n, j in registered.items() if j.value.closed and j.value.flow in deleted]
        self._flow_polls.soon(deleted)
        return tuple(flow for flow in kept if flow in deleted), journals

    def _remember(self, file: str, present: Collection[str], local: Collection[str]) -> KnownNames:
        names = self._known[file].after(self._generation, present, local)
        if names != self._known[file]:
            self._known[file] = names
            try:
                self._home.keep_known(file, names)
            except OSError as error:
                log.warning("cannot save %s, files of deleted flows may stay: %s", file, error)
        return names

    def _refresh(self) -> None:
        """Confirm the name, read the assignment. The timer is set first, to miss no change."""
        self._look_at = self._clock() + LOOK_SECONDS
        self._session, self._is_ours = self._store.session, False
        generation = self._require_cluster()
        if generation != self._generation:
            self._journals.forget_names()
            self._znodes.reread()
        elif self._clock() >= self._all_at:
            self._all_at = self._clock() + ALL_SECONDS
            self._znodes.reread()
        self._generation = generation
        self._znodes.register()
        self._registered, self._held_since, self._is_ours = True, 0.0, True
        if None in self._past.seen.values():
            self._look_back()
        assignment = self._znodes.assignment()
        if assignment is not None and assignment != self._applied:
            self._apply(assignment)
        if assignment is None:
            return
        if assignment != self._kept:
            self._keep(assignment)  # last: syncing takes as long as the rest of a failover
        assigned = {task.flow for task in assignment.assignment.tasks}
        self._remember(FLOWS, assigned, self._known[FLOWS].names | assigned)

    def _require_cluster(self) -> int:
        """Return the generation of ZooKeeper's tree. Raises UserError for another cluster."""
        schema = tree.require(self._store)
        self._home.belong_to(schema.cluster)
        return schema.generation

    def _apply(self, assigned: events.Assigned) -> None:
        before = self._applied.assignment.tasks if self._applied else ()
        flows = {task.flow for task in assigned.assignment.tasks}
        self._flow_polls.soon({task.flow for task in before} - flows)
        self._applied = assigned
        self._replicated.scan_soon()
        self._act(self._machine.handle(assigned))

    def _keep(self, assigned: events.Assigned) -> None:
        """Store the assignment on disk. A failure is logged and retried at the next refresh."""
        try:
            self._home.keep(assigned)
        except OSError as error:
            text = "cannot save the assignment, needed to start without ZooKeeper; retrying: %s"
            self._save_failures.warning(text, error)
        else:
            self._kept = assigned

    def _refresh_soon(self) -> None:
        self._look_at = 0.0
        self._events.put(None)

    def _on_session(self, connected: bool) -> None:
        if connected:
            self._all_at = 0.0
            self._refresh_soon()

    def _say(self, sentence: str) -> None:
        if sentence != self._logged:
            log.info("%s", sentence)
        self._logged = sentence


def run(settings: Settings) -> None:
    """Run a node until SIGTERM or SIGINT; waits for ZooKeeper. Raises UserError when the data
    directory, the name or the policy file cannot be used."""
    if not names.is_node(settings.name):
        raise UserError(
            f"invalid --name {settings.name!r}: use at most {names.NODE_CHARACTERS} letters, "
            "digits, dots, _ and -, and no dot at the beginning"
        )
    processes.forbid_core_dumps()
    member = process.member("node")
    if member not in ("", f"node:{settings.name}"):
        raise UserError(
            f"the certificate is for {member.removeprefix('node:')}, but --name is "
            f"{settings.name}: use the same name"
        )
    settings = replace(
        settings,
        policy=policy.find(settings.policy),
        warm_collector=settings.warm_collector and _can_run_spark(settings),
    )
    allowed = policy.load(settings.policy)
    home = DataDirectory(settings.data)
    store = ZooKeeperStore(settings.hosts, settings.session_seconds, roles=["node"])
    node = Node(settings, home, store, allowed=allowed)
    if settings.measured:
        _serve_metrics(settings, node, store)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.stop())
    Watchdog("node", node.health).start()
    try:
        node.run()
    finally:
        store.close()


def _can_run_spark(settings: Settings) -> bool:
    """Return whether a collecting node has a Java; log once that it has none."""
    if COLLECT not in settings.roles:
        return False
    try:
        find_java()
    except UserError as error:
        log.warning("no collector is kept warm, and collect tasks will not run: %s", error)
        return False
    return True


def _serve_metrics(settings: Settings, node: Node, store: ZooKeeperStore) -> None:
    from flumeng.platform.metrics import endpoint  # noqa: PLC0415  # only metrics need HTTP

    endpoint.serve(
        "node",
        node.health,
        lambda: chain(node.readings(), store.readings()),
        listen=settings.metrics,
        descriptor=settings.metrics_channel,
        children=lambda: node.channels,
    )
