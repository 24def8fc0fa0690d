"""Reads snapshots: changed paths at once when a watch reports them, and everything in rounds. A
reconnect or failure invalidates everything. About every minute a round rereads everything, a part
with each snapshot. Unreadable records are set aside: the flow is not planned, the node keeps its
tasks, the partition is not drained. While the cluster's settings are unreadable nothing moves."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from queue import SimpleQueue

from flumeng.control.snapshot.cluster_copy import IsLive, Mirror, changed_in, first_name
from flumeng.control.snapshot.leases import ExpiredLease, Leases, ServerClock
from flumeng.control.snapshot.polled_znodes import PolledZnodes
from flumeng.control.snapshot.rendezvous import chosen
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.snapshot.timers import NodeStates, Pauses, Rollouts, Timers
from flumeng.control.snapshot.views import Views, lacks_a_text
from flumeng.control.zookeeper import Path, ReadableStore, Unreadable, Version, Versioned
from zkschema import paths, table
from zkschema.records import Journal, LiveMaster

MISSED_RENEWALS = 3


def silent(
    me: str, live_masters: Mapping[str, Versioned[LiveMaster] | Unreadable], timers: Timers
) -> frozenset[str]:
    """Return the other live masters that missed ``MISSED_RENEWALS`` renewals: they hang."""
    hanging = set()
    for name, live in live_masters.items():
        if name == me or isinstance(live, Unreadable) or not live.value.renew_seconds:
            continue
        renewal = f"{live.created}/{live.version.number}"
        limit = MISSED_RENEWALS * live.value.renew_seconds
        if timers.lasting(f"renewal of {name}", [renewal], limit):
            hanging.add(name)
    return frozenset(hanging)


def planning_masters(
    live_masters: Mapping[str, Versioned[LiveMaster] | Unreadable], silent: Collection[str] = ()
) -> dict[str, frozenset[str]]:
    """Return the masters that plan, or all when none does, each with the flows it cannot plan.
    ``silent`` ones are left out; unreadable ones count as planning."""
    planning: dict[str, frozenset[str]] = {}
    idle: dict[str, frozenset[str]] = {}
    for name, live in live_masters.items():
        if name in silent:
            continue
        if isinstance(live, Unreadable):
            planning[name] = frozenset[str]()
            continue
        troubles = map(str.split, live.value.troubles)
        flows = (words[1] for words in troubles if len(words) == 2 and words[0] == "flow")
        (planning if live.value.plans else idle)[name] = frozenset(flows)
    return planning or idle


def share_of(
    me: str, flows: Iterable[str], masters: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """Return the flows that the master ``me`` plans; all masters try a flow that none can plan."""
    hard = frozenset().union(*masters.values())
    mine = set()
    for name in flows:
        able: Collection[str] = masters.keys()
        if name in hard:
            able = [master for master, cannot in masters.items() if name not in cannot]
        if master_of(name, able) in (me, None):
            mine.add(name)
    return frozenset(mine)


def master_of(flow: str, masters: Collection[str]) -> str | None:
    """Return the master that plans ``flow``, or leads for ""; None without masters. Masters that
    disagree lose a compare-and-set."""
    return chosen(flow, masters)


ROUND_SECONDS = 60.0
PART_SECONDS = 0.25
RETRY_SECONDS = 2.0
MOST_READS = 10
START_SECONDS = 120.0
WATCHED: tuple[Path, ...] = (
    paths.flows(),
    paths.nodes(),
    paths.live(),
    paths.journals(),
    paths.cluster(),
    paths.moves(),
)
OF_FLOW = (paths.flow, paths.plan, paths.plan_bucket, paths.partitions, paths.partitions_bucket)
OF_NODE = (paths.node, paths.assignment, paths.assignment_page, paths.status, paths.live_node)
SHARDS = (paths.plan_bucket, paths.assignment_page, paths.partitions_bucket)
READ = frozenset(
    row.pattern
    for row in (*OF_FLOW, *OF_NODE, paths.live_master, paths.journal, paths.cluster, paths.moves)
)


class Round:
    """Hands out the paths to reread, in parts; a first round at once. ``clock`` is monotonic."""

    def __init__(self, me: str, clock: Callable[[], float], part_znodes: int) -> None:
        self._clock, self._part_znodes = clock, part_znodes
        self._seconds = ROUND_SECONDS * _jitter(me)
        self._left: list[Path] = []
        self._at = 0.0

    @property
    def seconds_left(self) -> float:
        return self._at - self._clock()

    @property
    def under_way(self) -> bool:
        return bool(self._left)

    def begin(self, requested: list[Path]) -> None:
        self.end()
        self._left = requested

    def take(self) -> list[Path]:
        part, self._left = self._left[: self._part_znodes], self._left[self._part_znodes :]
        return part

    def end(self) -> None:
        self._left = []
        self._at = self._clock() + self._seconds


def _jitter(name: str) -> float:
    """Return a factor of 0.8 to 1.2 by master, so that masters do not read everything at once."""
    return 0.8 + 0.4 * (zlib.crc32(name.encode()) % 1000) / 1000


class Reader:
    """Reads snapshots for a master. ``clock``: monotonic seconds; ``wall``: seconds since the
    epoch. Only ``on_watch`` may be called from any thread."""

    def __init__(
        self,
        store: ReadableStore,
        me: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
        is_live: IsLive = lambda *_: True,
        *,
        part_znodes: int = 1000,
    ) -> None:
        self._store = store
        self._me = me
        self._wall = wall
        self._events: SimpleQueue[str] = SimpleQueue()
        self._stale = True
        self._round = Round(me, clock, part_znodes)
        self._mirror = Mirror(store, is_live)
        self._views = Views(store, self._mirror)
        self._masters: dict[str, Versioned[LiveMaster] | Unreadable] = {}
        self._flows: dict[str, FlowView] = {}
        self._nodes: dict[str, NodeView] = {}
        self._journals: dict[str, Journal] = {}
        self._journal_versions: dict[str, Version] = {}
        self._noted: frozenset[str] = frozenset()
        self._timers = Timers(clock)
        self._polled = PolledZnodes(store, self._timers)
        self._node_states = NodeStates(self._timers)
        self._rollouts = Rollouts(self._timers)
        self._leases = Leases(store, clock)
        self._server_clock = ServerClock(clock)
        self._pauses = Pauses(clock)

    def on_watch(self, path: str) -> None:
        """Note a change at or below ``path``; called by watches."""
        self._events.put(path)

    def invalidate(self) -> None:
        """Let the next snapshot read everything, as after a write with unknown outcome."""
        self._stale = True

    def note(self, flows: Iterable[str]) -> None:
        """Read the intents of exactly these flows from now on."""
        self._noted = frozenset(flows)

    @property
    def next_read_seconds(self) -> float:
        """Seconds until the next snapshot is due; a watch event makes it due at once."""
        if self._stale:
            return RETRY_SECONDS
        soonest = self._timers.soonest
        rest = self._round.seconds_left
        return max(0.0, rest if soonest is None else min(rest, soonest))

    def snapshot(self) -> Snapshot:
        """Return the cluster at one moment: the read is repeated until no watch event comes
        meanwhile. After ``MOST_READS`` reads it may mix moments. Raises UnavailableError."""
        moves = self._mirror.get(paths.moves())
        changed = self._take_events()
        everything = self._stale or _everywhere(changed)
        self._stale = True
        self._timers.begin()
        if not everything:
            self._reread(self._next_of_round())
        self._read(changed, everything=everything)
        for _ in range(MOST_READS):
            changed = self._take_events()
            if not changed:
                moves = self._mirror.get(paths.moves())
                break
            everything = everything or _everywhere(changed)
            self._read(changed, everything=_everywhere(changed))
        else:
            # ``moves`` is the version known before: never newer than the plans
            self._reread_buckets()
        snapshot = replace(
            self._as_snapshot(),
            moves=moves.version if moves else None,
            throttled_moves=isinstance(moves, Versioned),
        )
        self._timers.end()
        self._stale = False
        if everything:
            self._round.end()
        return snapshot

    def _reread_buckets(self) -> None:
        """Reread changed buckets: a plan from buckets older than their record would undo writes."""
        changed = self._take_events()
        buckets = {path for path in changed if any(row.matches(path) for row in SHARDS)}
        self._reread(_paths_of(buckets))
        for path in changed - buckets:
            self._events.put(path)

    def _next_of_round(self) -> list[Path]:
        if not self._round.under_way and self._round.seconds_left <= 0:
            listed = self._list()
            unlisted = self._mirror.paths - set(map(str, listed))
            self._round.begin([*listed, *_paths_of(unlisted)])
        part = self._round.take()
        if self._round.under_way:
            self._timers.wake_in(PART_SECONDS)
        return part

    def _read(self, changed: set[str], *, everything: bool) -> None:
        if everything:
            self._read_everything()
        else:
            self._reread(_paths_of(changed))

    def _take_events(self) -> set[str]:
        changed = set()
        while not self._events.empty():
            changed.add(self._events.get())
        return changed

    def _read_everything(self) -> None:
        """Read everything, as watches may have missed changes since the last snapshot."""
        self._timers.miss_changes()
        self._mirror.forget()
        self._flows, self._nodes, self._masters = {}, {}, {}
        self._journals, self._journal_versions = {}, {}
        self._views.restart(self._store.children(paths.flows()))
        self._reread(self._list())

    def _list(self) -> list[Path]:
        """Return all paths to read, without the buckets and pages."""
        children = self._store.children
        flows, nodes = children(paths.flows()), children(paths.nodes())
        listed: list[Path] = [paths.cluster(), paths.moves()]
        listed += map(paths.journal, children(paths.journals()))
        listed += (row(name) for row in OF_FLOW if row not in SHARDS for name in flows)
        own = [row for row in OF_NODE if row not in (*SHARDS, paths.live_node)]
        listed += (row(name) for row in own for name in nodes)
        listed += map(paths.live_node, children(paths.live_nodes()))
        listed += map(paths.live_master, children(paths.live_masters()))
        return listed

    def _reread(self, requested: list[Path]) -> None:
        flows = {name for name, flow in self._flows.items() if lacks_a_text(flow)}
        nodes, journals, masters = set(), set(), set()
        for path in self._mirror.refresh(requested):
            name = first_name(path)
            if path.row in OF_FLOW:
                flows.add(name)
            elif path.row in OF_NODE:
                nodes.add(name)
            elif path.row is paths.journal:
                journals.add(name)
            elif path.row is paths.live_master:
                masters.add(path)
        views = self._views
        self._flows = changed_in(self._flows, {name: views.flow(name) for name in flows})
        self._nodes = changed_in(self._nodes, {name: views.node(name) for name in nodes})
        self._journals = changed_in(
            self._journals, {name: views.journal(name) for name in journals}
        )
        self._journal_versions = changed_in(
            self._journal_versions, {name: views.journal_version(name) for name in journals}
        )
        self._masters = changed_in(
            self._masters, {path.name: self._mirror.get(path) for path in masters}
        )

    def _as_snapshot(self) -> Snapshot:
        record, cluster = self._mirror.record(paths.cluster()), self._views.cluster()
        silent_masters = silent(self._me, self._masters, self._timers)
        masters = planning_masters(self._masters, silent_masters)
        self._nodes = self._node_states.mark(self._nodes, cluster, self._wall())
        draining = [(flow, name) for flow in self._flows.values() for name in flow.draining]
        moving = any(flow.tasks[name].target for flow, name in draining)
        pause = self._pauses.left(moving=moving)
        if pause:
            self._timers.wake_in(pause)
        drained = self._polled.drained(self._flows, self._journals)
        leads = record is not None and master_of("", masters.keys()) in (self._me, None)
        now = self._wall()
        snapshot = Snapshot(
            flows=self._flows,
            nodes=self._nodes,
            journals=self._journals,
            drained=drained,
            committing=self._polled.committing(self._flows),
            intents=self._polled.intents(self._noted & self._flows.keys()),
            mine=share_of(
                self._me,
                (name for name, flow in self._flows.items() if not flow.set_aside),
                masters,
            ),
            overdue=self._overdue(draining, cluster.drain_limit_seconds),
            settled=self._rollouts.settled(self._flows, self._nodes),
            balance_moves=0 if pause else cluster.throttles.get("balance", 1),
            cluster=cluster,
            cluster_version=record.version if record else Version(0),
            cluster_known=not self._mirror.unreadable_of(paths.cluster()),
            leads=leads,
            now=now,
            journal_versions=self._journal_versions,
            expired_leases=self._expired_leases() if leads else (),
            unreadable=tuple(self._mirror.unreadable.values()),
            silent_masters=silent_masters,
            scale=self._store.scale,
        )
        stalled = self._rollouts.stalled(snapshot)
        return replace(snapshot, stalled=stalled, slow=self._slow(snapshot))

    def _expired_leases(self) -> tuple[ExpiredLease, ...]:
        """Return the expired leases; none without this master's live znode as ZooKeeper's clock."""
        own = self._masters.get(self._me)
        if not isinstance(own, Versioned):
            return ()
        return self._leases.expired(self._server_clock.now(own.written))

    def _slow(self, snapshot: Snapshot) -> frozenset[str]:
        """Return the tasks that start slowly; none without recovery throttle or down nodes."""
        waiting = any(node.down for node in snapshot.nodes.values())
        if not waiting or "recovery" not in snapshot.cluster.throttles:
            return frozenset()
        keys = [f"{key}/{task.epoch}" for key, task in snapshot.starting()]
        slow = self._timers.lasting("starting", keys, START_SECONDS)
        return frozenset(key.rpartition("/")[0] for key in slow)

    def _overdue(
        self, draining: Iterable[tuple[FlowView, str]], limit_seconds: float
    ) -> frozenset[str]:
        keys = [f"{flow.name}/{name}/{flow.tasks[name].mark}" for flow, name in draining]
        late = self._timers.lasting("draining", keys, limit_seconds)
        return frozenset(key.rpartition("/")[0] for key in late)


def _paths_of(texts: Iterable[str]) -> list[Path]:
    parsed: list[Path] = []
    for text in sorted(texts):
        row = table.find(text)
        if row is not None and row.pattern in READ:
            names = row.matches(text)
            assert names is not None
            parsed.append(row(*names))
    return parsed


def _everywhere(changed: set[str]) -> bool:
    """Return whether an event names a whole folder, so that all below may have changed."""
    return any(str(top) in changed for top in WATCHED if top.row.record is None)
