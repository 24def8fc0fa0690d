"""The master's loop: one tick reads, plans, applies and reports. Other masters take over the flows
that a master reports as troubles in ``/live/masters/M``, or its whole share without ``plans``."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import signal
import socket
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Literal

from flumeng import __version__
from flumeng.control.commands.operator import trim_audit
from flumeng.control.master.execution import Outcome, carry_out, topics
from flumeng.control.master.isolation import IsolatingPlanner
from flumeng.control.master.journal_access import JournalAccess
from flumeng.control.master.measures import Measures
from flumeng.control.master.removals import Removals
from flumeng.control.master.repeated_messages import QUIET_SECONDS, RepeatedMessages
from flumeng.control.master.tidying import LiveProofs, remove_gone, remove_unproven
from flumeng.control.planner.planner import Planner
from flumeng.control.snapshot.reader import WATCHED, Reader
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import ABSENT, ANY, Expected, Store, possible, tree
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore
from flumeng.platform.errors import (
    ConflictError,
    FlumengError,
    ForbiddenError,
    UnavailableError,
    UserError,
)
from flumeng.platform.security import process
from flumeng.platform.security.expiry import Expiry, utc_now
from flumeng.platform.watchdog import Watchdog
from zkschema import paths, table
from zkschema.access import Secured
from zkschema.records import LiveMaster

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.02
BURST_SECONDS = 1.0
"""Changes within this time of a tick wait ``SETTLE_SECONDS`` for others; a rarer one, as of a lost
node, is planned at once."""
REASONS_LOGGED = 20
AWAY_SECONDS = 60.0
"""Time for which a failing master leaves its share of the flows to other masters."""
CONFLICTS = 5
"""After this many lost compare-and-sets in a row a flow's change is withheld and reported."""
TRIM_SECONDS = 60.0
UPDATE_SECONDS = 5.0
RENEW_SECONDS = 10.0
"""A planning master rewrites its live record this often, sooner (``UPDATE_SECONDS``) if changed."""
TROUBLES = 12
TROUBLE_CHARACTERS = 160
SILENT = "is connected but plans nothing: its loop hangs; other masters plan its flows"


class Master:
    """A master. ``stop`` may be called from any thread. ``clock``: monotonic; ``wall``: since the
    epoch. ``troubles``: failures by subject, such as ``flow F``, ``node N`` or ``cluster``."""

    def __init__(
        self,
        store: Store,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._proofs = LiveProofs(clock)
        self._journal_access = JournalAccess(store, clock)
        self._removals = Removals(store)
        self._secured: Secured | None = None
        self._reader = Reader(store, name, clock, wall, self._proofs.is_live)
        self._member = process.member("master")
        self._planner = IsolatingPlanner(self.make_planner, clock)
        self._messages = RepeatedMessages(clock)
        self._trouble_at: dict[str, float] = {}
        self._expiry = Expiry(clock, utc_now)
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping = False
        self._since = time.time()
        self._written: LiveMaster | None = None
        self._written_at = float("-inf")
        self._write_at = float("inf")
        self._ticked_at = float("-inf")
        self._trimmed_at = float("-inf")
        self._untrimmed: dict[str, str] = {}
        self._failures = Failures(clock)
        self._away_until = float("-inf")
        self._given_up = ""
        self._conflicts: Counter[str] = Counter()
        self.troubles: Mapping[str, str] = {}
        self.measures = Measures(clock)
        self.measures.health.needs(
            lambda: None if store.connected else "ZooKeeper is not connected"
        )
        for top in WATCHED:
            store.watch(top, self._on_change)

    def make_planner(self) -> Planner:
        return Planner()

    def run(self) -> None:
        """Tick after each change and on a timer until ``stop``."""
        self.measures.health.turned()
        while not self._stopping:
            self._log(self.tick())
            self._ticked_at = self._clock()
            self.measures.health.turned(next_within_seconds=self.wait_seconds)
            self._wait()

    def stop(self) -> None:
        self._stopping = True
        self._wakes.put(None)

    @property
    def wait_seconds(self) -> float:
        until_write = max(0.0, self._write_at - self._clock())
        return min(self._reader.next_read_seconds, until_write)

    def tick(self) -> str:
        """Run one tick; return its summary. Never raises: after repeated failures a master leaves
        its share to the others for ``AWAY_SECONDS``, and tries on."""
        try:
            return self.attempt()
        except Exception as error:  # no input may end a master
            if self._messages.is_new("failure", str(error)):
                log.exception("a planning round (tick) failed")
            return self._fail(f"cannot plan: {type(error).__name__}: {error}", "failed")

    def attempt(self) -> str:
        """Run one tick as ``tick`` does; unexpected errors are raised."""
        if not self._store.connected:
            self._reader.invalidate()
            return self.measures.ticked("unavailable", "waiting for ZooKeeper")
        try:
            schema = tree.require(self._store)
            self._secured = Secured.of(schema)
            if self._proofs.learn(self._store, schema):
                self._reader.invalidate()
        except UnavailableError as error:
            return self._unavailable(error)
        except FlumengError as error:
            self._leave()
            return self.measures.ticked("failed", f"cannot plan: {error}")
        try:
            self._enter()
            sentence = self._turn()
            self._failures.add(failed=False)
            self._renew()
        except UnavailableError as error:
            return self._unavailable(error)
        self._trim_audit()
        return sentence

    def _unavailable(self, error: UnavailableError) -> str:
        if isinstance(error, ForbiddenError):
            return self._fail(f"cannot plan: {error}", "failed")
        return self._fail(f"waiting for ZooKeeper: {error}")

    def _trim_audit(self) -> None:
        """Trim the audit from time to time: in a secured cluster only masters may. A failure is a
        trouble until the next attempt."""
        now = self._clock()
        if now - self._trimmed_at >= TRIM_SECONDS:
            self._trimmed_at, self._untrimmed = now, {}
            try:
                trim_audit(self._store)
            except UnavailableError as error:
                self._untrimmed = {"audit": f"cannot remove old entries: {error}"}

    def _turn(self) -> str:
        snapshot = self._reader.snapshot()
        progressed = self.measures.health.turned
        progressed()
        with self.measures.planning(snapshot):
            actions = self._planner.plan(snapshot)
        progressed()
        held = self._planner.held
        self._reader.note(held)
        if held.keys() - snapshot.intents.keys():
            self._wakes.put(None)
        wrong_access = self._journal_access.follow(self._secured, snapshot, actions)
        if self._journal_access.waiting:
            self._wakes.put(None)
        outcome = carry_out(self._store, actions, snapshot, self._removals, progressed)
        self.measures.planned(outcome.done)
        if outcome.unfinished:
            self._wakes.put(None)
        self._retry_after(outcome, snapshot)
        self.troubles = {
            **_of_flows(snapshot, self._planner.withheld),
            **self._refused(outcome),
            **{f"master {name}": SILENT for name in sorted(snapshot.silent_masters)},
            **wrong_access,
            **self._expiry.problems(),
            **self._untrimmed,
            **self._share_trouble,
        }
        self.measures.troubles = len(self.troubles)
        reasons = [reason for action in outcome.done for reason in action.why]
        reasons += [
            f"journals stay with task {flow}/{task} until its batches are finished"
            for flow in snapshot.intents
            for task in sorted(held.get(flow, ()))
        ]
        reasons += [f"retrying after a conflict: {conflict}" for conflict in outcome.conflicts[:1]]
        reasons += ["flow removal continues in the next tick"] if outcome.unfinished else []
        if snapshot.leads:
            reasons += remove_unproven(self._store, self._proofs)
            reasons += remove_gone(self._store, snapshot)
        return self.measures.ticked("conflict" if outcome.conflicts else "done", _sentence(reasons))

    def _retry_after(self, outcome: Outcome, snapshot: Snapshot) -> None:
        """Plan again at once after a refused flow or a conflict. Withhold a flow refused with a
        UserError, or ``CONFLICTS`` times in a row."""
        self._conflicts = Counter(
            {key: self._conflicts[key] + 1 for key in (*outcome.flows, *topics(outcome))}
        )
        for flow, error in outcome.flows.items():
            if isinstance(error, UserError) or self._conflicts[flow] >= CONFLICTS:
                self._planner.withhold(snapshot, flow, f"its change is refused: {error}")
        if (
            outcome.flows
            or outcome.overtaken
            or (outcome.conflicts and max(self._conflicts.values()) < CONFLICTS)
        ):
            self._wakes.put(None)

    @property
    def _share_trouble(self) -> dict[str, str]:
        return {"share": self._given_up} if self._clock() < self._away_until else {}

    def _refused(self, outcome: Outcome) -> dict[str, str]:
        return {
            topic: str(error)
            for topic, error in topics(outcome).items()
            if not isinstance(error, ConflictError) or self._conflicts[topic] >= CONFLICTS
        }

    def _fail(
        self, sentence: str, outcome: Literal["unavailable", "failed"] = "unavailable"
    ) -> str:
        """Report a tick without a plan; after too many of them leave the share to other masters."""
        self._reader.invalidate()
        now = self._clock()
        if now >= self._away_until:
            self._failures.add(failed=True)
        if self._failures.too_many:
            self._failures = Failures(self._clock)
            self._away_until = now + AWAY_SECONDS
            self._given_up = f"its flows are given to the other masters: {sentence}"
            self.troubles = self._share_trouble
        if now < self._away_until:
            with contextlib.suppress(Exception):  # report only the first failure
                self._enter()
        return self.measures.ticked(outcome, sentence)

    def _enter(self) -> None:
        """Write the master's live record when it is missing or the master's share has changed."""
        record, written = self._record(), self._written
        me = paths.live_master(self._name)
        there = self._store.exists(me)
        keeps_share = (
            written is not None
            and written.plans == record.plans
            and written.troubles.keys() >= record.troubles.keys()
        )
        if not (there and keeps_share):
            self._write(record, ANY if there else ABSENT)

    def _renew(self) -> None:
        """Rewrite the live record from time to time, sooner after a change."""
        record, written = self._record(), self._written
        if written is None:  # the record of an earlier session of this name was in the way
            return
        self._write_at = self._written_at + (RENEW_SECONDS if record == written else UPDATE_SECONDS)
        new_troubles = record.troubles.keys() - written.troubles.keys()
        if self._clock() >= self._write_at or record.plans != written.plans or new_troubles:
            self._write(record, ANY)

    def _record(self) -> LiveMaster:
        flows = sum(topic.startswith("flow ") for topic in self.troubles)
        return LiveMaster(
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            since=self._since,
            schema=table.VERSION,
            plans=self._clock() >= self._away_until and flows <= TROUBLES,
            identity=self._member,
            renew_seconds=RENEW_SECONDS,
            troubles={
                topic: why[:TROUBLE_CHARACTERS]
                for topic, why in sorted(self.troubles.items())[:TROUBLES]
            },
        )

    def _write(self, record: LiveMaster, expect: Expected) -> None:
        with contextlib.suppress(ConflictError):  # an earlier session of this name ended now
            self._store.write(paths.live_master(self._name), record, expect)
            self._written, self._written_at = record, self._clock()
            self._write_at = self._written_at + RENEW_SECONDS

    def _leave(self) -> None:
        """Remove the live record: a master that cannot use the schema has no share."""
        me = paths.live_master(self._name)
        with contextlib.suppress(FlumengError):
            if self._written is not None and self._store.exists(me):
                self._store.remove(me, ANY)
                self._written = None

    def _on_change(self, path: str) -> None:
        self._reader.on_watch(path)
        self._wakes.put(None)

    def _wait(self) -> None:
        """Wait for a change or the timer; coalesces the changes of a burst."""
        try:
            self._wakes.get(timeout=self.wait_seconds)
        except queue.Empty:
            return
        if self._clock() - self._ticked_at < BURST_SECONDS:
            time.sleep(SETTLE_SECONDS)
        while not self._wakes.empty():
            self._wakes.get()

    def _log(self, sentence: str) -> None:
        """Log a tick's sentence and its troubles, and a trouble's end after a minute without it."""
        now, troubles = self._clock(), dict(self.troubles)
        if self.measures.trouble is not None:
            troubles["planning"] = sentence
        elif self._messages.is_new("tick", sentence):
            log.info("%s", sentence)
        for topic, why in troubles.items():
            if self._messages.is_new(topic, why):
                log.warning("%s: %s", topic, why)
            self._trouble_at[topic] = now
        for topic in [t for t, at in self._trouble_at.items() if now - at >= QUIET_SECONDS]:
            del self._trouble_at[topic]
            log.info("%s: no trouble for a minute", topic)


def _of_flows(snapshot: Snapshot, withheld: Mapping[str, str]) -> dict[str, str]:
    """Return why this master cannot plan a flow, by ``flow F``; another master may plan it."""
    troubles = {f"flow {flow}": why for flow, why in withheld.items()}
    for name, view in snapshot.flows.items():
        if view.set_aside:
            troubles[f"flow {name}"] = str(view.unreadable[0])
        elif view.problem:
            troubles[f"flow {name}"] = f"revision {view.record.revision}: {view.problem}"
    return troubles


def _sentence(reasons: list[str]) -> str:
    more = len(reasons) - REASONS_LOGGED
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*reasons[:REASONS_LOGGED], *rest]) or "nothing to do"


def collect_garbage_rarely() -> None:
    """Run the garbage collector rarely: a snapshot has very many lasting objects without cycles."""
    gc.set_threshold(100_000, 50, 50)


def run(
    hosts: str,
    *,
    name: str | None = None,
    session_seconds: float = 10.0,
    metrics: str | None = None,
    metrics_channel: int | None = None,
) -> None:
    """Run a master until SIGTERM or SIGINT; waits for ZooKeeper at start. ``metrics``: address to
    serve; ``metrics_channel``: the parent's file descriptor. Raises UserError for bad input."""
    if name is not None and not possible([name]):
        raise UserError(f"invalid master name {name!r}: use letters, digits and ._:@=+-")
    collect_garbage_rarely()
    store = ZooKeeperStore(hosts, session_seconds, roles=["master"])
    master = Master(store, name or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: master.stop())
    if metrics is not None or metrics_channel is not None:
        from flumeng.platform.metrics import endpoint  # noqa: PLC0415  # only metrics need HTTP

        measures = master.measures
        endpoint.serve(
            "master",
            measures.health,
            lambda: chain(measures.readings(), store.readings()),
            listen=metrics,
            descriptor=metrics_channel,
        )
    log.info("master started on ZooKeeper %s", hosts)
    Watchdog("master", master.measures.health).start()
    try:
        master.run()
    finally:
        store.close()


TICKS = 12
FAILURES, FAILING_SECONDS = 3, 5.0


class Failures:
    """Counts failures among the last ``TICKS`` ticks. ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed_at: deque[float | None] = deque(maxlen=TICKS)

    def add(self, *, failed: bool) -> None:
        self._failed_at.append(self._clock() if failed else None)

    @property
    def too_many(self) -> bool:
        """Whether ``FAILURES`` or more failed, the first at least ``FAILING_SECONDS`` ago."""
        failed = [at for at in self._failed_at if at is not None]
        return len(failed) >= FAILURES and self._clock() - failed[0] >= FAILING_SECONDS
