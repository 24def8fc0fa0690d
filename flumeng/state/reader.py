"""From the store to a snapshot: what a watch has named is read anew, and in rounds everything.

A watch only says where to look again. After a reconnect and after a failure nothing that was read
before counts. Each minute a round begins in which all is read once more, a part with each look, so
that a large cluster keeps nobody waiting. A view is made anew only when something in it changed.

A record that cannot be read is set aside: its flow is planned by nobody, its node keeps what it
has, its partition is not drained, and without the cluster's settings nothing moves. It is looked at
again when it changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, TypeVar

from flumeng.spec import FlowSpec, SpecError, parse_flow
from flumeng.state import discovered, journal_registry, partitions
from flumeng.state.absences import Absences
from flumeng.state.assignment_pages import whole
from flumeng.state.partitions import FLOW, Known, ack_path, input_of
from flumeng.state.resync import LOOK_SECONDS, Round
from flumeng.state.rollouts import Rollouts
from flumeng.state.snapshot import FlowView, IntentView, NodeView, Snapshot
from flumeng.state.task_map import Tasks
from flumeng.state.timers import Moments, Pauses
from flumeng.store import (
    ABSENT,
    Expected,
    Found,
    Path,
    ReadableStore,
    Unreadable,
    Version,
    Versioned,
)
from zkschema import paths, table
from zkschema.records import (
    COLLECT,
    Assignment,
    Cluster,
    Flow,
    Journal,
    LiveMaster,
    Maintenance,
    Node,
    Partition,
    Partitions,
    Plan,
)
from zkschema.table import Row

V = TypeVar("V")

UNWATCHED_SECONDS = 2.0
RETRY_SECONDS = 2.0
MOST_LOOKS = 10
START_SECONDS = 120.0
WATCHED: tuple[Path, ...] = (
    paths.flows(),
    paths.nodes(),
    paths.live(),
    paths.journals(),
    paths.cluster(),
)
OF_FLOW = (
    paths.flow,
    paths.plan,
    paths.plan_bucket,
    paths.partitions,
    paths.partitions_bucket,
)
OF_NODE = (paths.node, paths.assignment, paths.assignment_page, paths.status, paths.live_node)
SHARES = (paths.plan_bucket, paths.assignment_page, paths.partitions_bucket)
READ = frozenset(
    row.pattern for row in (*OF_FLOW, *OF_NODE, paths.live_master, paths.journal, paths.cluster)
)


class Reader:
    """``clock`` gives seconds that only ever grow, ``wall`` those since the epoch; ``me`` is this
    master's name. ``on_watch`` may be called from any thread, all else from one."""

    def __init__(
        self,
        store: ReadableStore,
        me: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._me = me
        self._wall = wall
        self._heard: SimpleQueue[str] = SimpleQueue()
        self._stale = True
        self._round = Round(me, clock)
        self._znodes: dict[str, Versioned[Any] | Unreadable] = {}
        self._set_aside: dict[str, Unreadable] = {}
        self._masters: dict[str, Versioned[LiveMaster] | Unreadable] = {}
        self._specs: dict[str, dict[tuple[int, int], tuple[FlowSpec | None, str]]] = {}
        self._flows: dict[str, FlowView] = {}
        self._nodes: dict[str, NodeView] = {}
        self._journals: dict[str, Journal] = {}
        self._drained: frozenset[str] = frozenset()
        self._without_commits: dict[str, FlowView] = {}
        self._by_batch: set[str] = set()
        """The flows of which a revision was seen that decides batches, or such a decision."""
        self._noted: frozenset[str] = frozenset()
        self._moments = Moments(clock)
        self._absences = Absences(self._moments)
        self._rollouts = Rollouts(self._moments)
        self._pauses = Pauses(clock)

    def on_watch(self, path: str) -> None:
        """Something at ``path`` has changed; the path of a watch itself stands for all below."""
        self._heard.put(path)

    def invalidate(self) -> None:
        """A write may or may not have been carried out: look at everything, and soon."""
        self._stale = True

    def note(self, flows: Iterable[str]) -> None:
        """From now on look at what the tasks of these flows have decided, and of no others."""
        self._noted = frozenset(flows)

    @property
    def look_again_seconds(self) -> float:
        """When to take the next snapshot although nothing was heard."""
        if self._stale:
            return RETRY_SECONDS
        soonest = self._moments.soonest
        rest = self._round.seconds_left
        return max(0.0, rest if soonest is None else min(rest, soonest))

    def snapshot(self) -> Snapshot:
        """The cluster as it was at one moment, unless it never holds still.

        A watch tells before a read shows what it tells of. So when nothing was heard while reading,
        all that was read is of one moment: no node seems to be gone that has only just joined when
        the plan was read that gives it a task. Raises UnavailableError.
        """
        heard = self._take_heard()
        everything = self._stale or _everywhere(heard)
        self._stale = True
        self._moments.begin()
        if not everything:
            self._read_again(self._next_of_round())
        self._look(heard, everything=everything)
        for _ in range(MOST_LOOKS):
            heard = self._take_heard()
            if not heard:
                break
            everything = everything or _everywhere(heard)
            self._look(heard, everything=_everywhere(heard))
        else:
            self._look_at_buckets()
        snapshot = self._as_snapshot()
        self._stale = False
        if everything:
            self._round.end()
        return snapshot

    def _look_at_buckets(self) -> None:
        """None may be older than its plan: what is planned for the plan's version would undo what
        was written with it. What is newer than its plan loses."""
        heard = self._take_heard()
        buckets = {path for path in heard if any(_is(path, row) for row in SHARES)}
        self._read_again(_paths_of(buckets))
        for path in heard - buckets:
            self._heard.put(path)

    def _next_of_round(self) -> list[Path]:
        """What to read anew although nothing was heard of it."""
        if not self._round.under_way and self._round.seconds_left <= 0:
            listed = self._list()
            known = self._znodes.keys() - set(map(str, listed))
            self._round.begin([*listed, *_paths_of(known)])
        part = self._round.take()
        if self._round.under_way:
            self._moments.look_in(LOOK_SECONDS)
        return part

    def _look(self, heard: set[str], *, everything: bool) -> None:
        if everything:
            self._read_everything()
        else:
            self._read_again(_paths_of(heard))

    def _take_heard(self) -> set[str]:
        heard = set()
        while not self._heard.empty():
            heard.add(self._heard.get())
        return heard

    def _read_everything(self) -> None:
        """Whoever has not seen what was in between cannot say how long anything has been so."""
        self._moments.forget()
        self._znodes, self._set_aside, self._masters = {}, {}, {}
        self._flows, self._nodes, self._journals = {}, {}, {}
        flows = self._store.children(paths.flows())
        decided = self._store.children_many([paths.intents(name) for name in flows])
        self._by_batch = {name for name, tasks in zip(flows, decided, strict=True) if tasks}
        self._read_again(self._list())
        self._specs = {name: self._specs[name] for name in self._flows if name in self._specs}

    def _list(self) -> list[Path]:
        """All that there is to read, but for the buckets of plans."""
        children = self._store.children
        flows, nodes = children(paths.flows()), children(paths.nodes())
        wanted: list[Path] = [paths.cluster(), *map(paths.journal, children(paths.journals()))]
        wanted += (row(name) for row in OF_FLOW if row not in SHARES for name in flows)
        own = [row for row in OF_NODE if row not in (*SHARES, paths.live_node)]
        wanted += (row(name) for row in own for name in nodes)
        wanted += map(paths.live_node, children(paths.live_nodes()))
        wanted += map(paths.live_master, children(paths.live_masters()))
        return wanted

    def _read_again(self, wanted: list[Path]) -> None:
        """Only these, and the views of which something has changed or could not be read."""
        flows = {name for name, flow in self._flows.items() if _lacks_a_text(flow)}
        nodes, journals = set(), set()
        for path in self._take(wanted):
            name = _first_name(path)
            if path.row in OF_FLOW:
                flows.add(name)
            elif path.row in OF_NODE:
                nodes.add(name)
            elif path.row is paths.journal:
                journals.add(name)
        self._flows = _with(self._flows, {name: self._flow(name) for name in flows})
        self._nodes = _with(self._nodes, {name: self._node(name) for name in nodes})
        self._journals = _with(self._journals, {name: self._journal(name) for name in journals})

    def _take(self, wanted: list[Path]) -> list[Path]:
        """Read these, and what lies in buckets below them; gives those that have changed."""
        changed = self._read(wanted)
        missing: list[Path] = []
        for path in wanted:
            known = self._znodes.get(str(path))
            if isinstance(known, Versioned) and path.row is paths.plan:
                flow = _first_name(path)
                buckets = (paths.plan_bucket(flow, str(n)) for n in range(known.value.buckets))
                missing += (bucket for bucket in buckets if str(bucket) not in self._znodes)
            elif isinstance(known, Versioned) and path.row is paths.partitions:
                shares = discovered.buckets_of(_first_name(path), known.value)
                missing += (share for share in shares if str(share) not in self._znodes)
            elif isinstance(known, Versioned) and path.row is paths.assignment:
                pages = _pages(_first_name(path), known.value)
                missing += (page for page in pages if str(page) not in self._znodes)
        return [*changed, *self._read(missing)]

    def _read(self, wanted: list[Path]) -> list[Path]:
        """Gives those that are not as they were."""
        changed = []
        for path, found in zip(wanted, self._store.read_each(wanted), strict=True):
            known = self._znodes.get(str(path))
            if _same(known, found):
                continue
            changed.append(path)
            self._set_aside.pop(str(path), None)
            if isinstance(found, Unreadable):
                self._set_aside[str(path)] = found
            if found is None:
                self._znodes.pop(str(path), None)
            else:
                self._znodes[str(path)] = found
            if path.row is paths.live_master:
                self._masters = _with(self._masters, {path.name: found})
        return changed

    def _found(self, path: Path) -> Versioned[Any] | None:
        found = self._znodes.get(str(path))
        return found if isinstance(found, Versioned) else None

    def _unreadable(self, *wanted: Path) -> tuple[Unreadable, ...]:
        """Those of these paths that are there and cannot be read."""
        if not self._set_aside:
            return ()
        found = (self._set_aside.get(str(path)) for path in wanted)
        return tuple(one for one in found if one is not None)

    def _version(self, path: Path) -> Expected:
        found = self._znodes.get(str(path))
        return found.version if found else ABSENT

    def _journal(self, name: str) -> Journal | None:
        path = paths.journal(name)
        found = self._znodes.get(str(path))
        return journal_registry.as_known(path, found) if found else None

    def _flow(self, name: str) -> FlowView | None:
        path = paths.flow(name)
        known = self._specs.pop(name, {})
        if str(path) not in self._znodes:
            return None
        record = self._found(path)
        spec, problem = None, ""
        if record is not None:
            spec, problem = self._spec(name, record.created, record.value.revision, known)
        plan = self._found(paths.plan(name))
        buckets = (
            [paths.plan_bucket(name, str(n)) for n in range(plan.value.buckets)] if plan else []
        )
        found = self._found(paths.partitions(name))
        shares = discovered.buckets_of(name, found.value) if found else []
        known_partitions = self._discovered(found, shares)
        version = self._version(path)
        assert isinstance(version, Version)
        before: FlowSpec | None = None
        lacks = ""
        if record and plan and spec and spec.rollout and plan.value.revision:
            before, lacks = self._spec(name, record.created, plan.value.revision, known)
        specs = [one for one in (spec, before) if one is not None]
        if any(one.by_batch for one in specs):
            self._by_batch.add(name)
        planned = str(paths.plan(name)) in self._znodes
        view = FlowView(
            name,
            record.value if record else Flow(revision=0),
            version,
            spec.place if spec else None,
            problem,
            spec.rollout if spec else None,
            self._whole(plan.value, buckets) if plan else Plan(),
            self._version(paths.plan(name)),
            {key: one.weight for key, one in known_partitions.items() if one.weight},
            self._unreadable(path, paths.plan(name), *buckets, paths.partitions(name), *shares),
            before.place if before else None,
            0
            if planned
            else self._highest_epoch(name, found.value.epoch if found else 0, known_partitions),
            name in self._by_batch,
            known_partitions,
            any(one.pinned for one in specs),
            bool(known_partitions) or any(one.partitioned for one in specs),
            found.value.scaling.tasks if found and found.value.scaling else 0,
        )
        if lacks and view.rolling:  # nobody knows where the tasks of before may run
            text = Unreadable(paths.revision(name, str(view.plan.revision)), lacks)
            return replace(view, unreadable=(*view.unreadable, text))
        return view

    def _highest_epoch(self, flow: str, of_discovery: int, known: Iterable[str]) -> int:
        """Read when there is no plan, or not any more: the acks refuse whoever has a lower one, and
        so does the record of its discovery."""
        cursors = self._store.children(paths.acks(flow))
        acked = self._store.children_many([paths.cursor(flow, cursor) for cursor in cursors])
        wanted = [
            paths.ack(flow, cursor, partition)
            for cursor, partitions in zip(cursors, acked, strict=True)
            for partition in partitions
        ]
        wanted += [ack_path(flow, name) for name in known if input_of(name) == FLOW]
        found = self._store.read_each(wanted)
        epochs = (ack.value.epoch for ack in found if isinstance(ack, Versioned))
        return max([of_discovery, *epochs])

    def _whole(self, plan: Plan, buckets: Sequence[Path]) -> Plan:
        """The plan with the tasks of its buckets."""
        if not plan.buckets:
            return plan
        found = map(self._found, buckets)
        return replace(
            plan, tasks=Tasks([bucket.value.tasks if bucket else {} for bucket in found])
        )

    def _discovered(
        self, record: Versioned[Partitions] | None, shares: Sequence[Path]
    ) -> Mapping[str, Partition]:
        """The partitions of the record, with those of its buckets that can be read."""
        if record is None:
            return {}
        found = discovered.whole(record, [self._found(share) for share in shares])
        assert isinstance(found, Versioned)
        return found.value.partitions

    def _spec(
        self,
        flow: str,
        created: int,
        revision: int,
        known: Mapping[tuple[int, int], tuple[FlowSpec | None, str]],
    ) -> tuple[FlowSpec | None, str]:
        """What the revision says, or why it cannot be read; a text never changes. A flow that was
        removed and made again begins with another revision 1.

        Of the texts that were ``known``, those that are asked for stay known.
        """
        key = (created, revision)
        kept = self._specs.setdefault(flow, {})
        if key in known:
            kept[key] = known[key]
        elif key not in kept:
            (found,) = self._store.read_each([paths.revision(flow, str(revision))])
            if found is None:
                return None, f"revision {revision} is not there"
            if isinstance(found, Unreadable):
                return None, found.why
            try:
                kept[key] = parse_flow(found.value.text), ""
            except SpecError as error:
                kept[key] = None, str(error)
        return kept[key]

    def _node(self, name: str) -> NodeView | None:
        path, told, said = paths.node(name), paths.assignment(name), paths.status(name)
        if str(path) not in self._znodes:
            return None
        record, assignment, status = map(self._found, (path, told, said))
        pages = _pages(name, assignment.value) if assignment else []
        return NodeView(
            name,
            record.value if record else Node(uuid="", roles=(), desired="unknown"),
            live=str(paths.live_node(name)) in self._znodes,
            assignment=whole(assignment.value, [self._found(page) for page in pages])
            if assignment
            else Assignment(),
            assignment_version=self._version(told),
            status=status.value if status else None,
            unreadable=self._unreadable(path, told, *pages, said),
            version=record.version if record else Version(0),
        )

    def _cluster(self) -> Cluster:
        """While the settings cannot be read, nothing may move."""
        found = self._znodes.get(str(paths.cluster()))
        if isinstance(found, Unreadable):
            return Cluster(maintenance=Maintenance(who="flumeng", why=str(found), since=0.0))
        return found.value if found else Cluster()

    def _as_snapshot(self) -> Snapshot:
        found, cluster = self._found(paths.cluster()), self._cluster()
        masters = self._share_masters()
        self._nodes = self._absences.mark(self._nodes, cluster, self._wall())
        draining = [(flow, name) for flow in self._flows.values() for name in flow.draining]
        moving = any(flow.tasks[name].target for flow, name in draining)
        pause = self._pauses.left(moving=moving)
        if pause:
            self._moments.look_in(pause)
        drained = self._see_drained()
        snapshot = Snapshot(
            flows=self._flows,
            nodes=self._nodes,
            journals=self._journals,
            drained=drained,
            committing=self._committing(),
            intents=self._intents(),
            mine=self._mine(masters),
            overdue=self._overdue(draining, cluster.drain_limit_seconds),
            settled=self._rollouts.settled(self._flows, self._nodes),
            balance_moves=0 if pause else cluster.throttles.get("balance", 1),
            cluster=cluster,
            cluster_version=found.version if found else Version(0),
            cluster_known=not self._unreadable(paths.cluster()),
            leads=found is not None and looks_after("", masters.keys()) in (self._me, None),
            now=self._wall(),
            unreadable=tuple(self._set_aside.values()),
        )
        stalled = self._rollouts.stalled(snapshot)
        return replace(snapshot, stalled=stalled, slow=self._slow(snapshot))

    def _slow(self, snapshot: Snapshot) -> frozenset[str]:
        """Asked for only while lost tasks are given away a few at a time."""
        waiting = any(node.lost for node in snapshot.nodes.values())
        if not waiting or "recovery" not in snapshot.cluster.throttles:
            return frozenset()
        keys = [f"{key}/{task.epoch}" for key, task in snapshot.starting()]
        slow = self._moments.lasting("starting", keys, START_SECONDS)
        return frozenset(key.rpartition("/")[0] for key in slow)

    def _share_masters(self) -> dict[str, frozenset[str]]:
        """The masters that take their share, and the flows that each cannot plan; all live ones
        when none says that it does."""
        planning: dict[str, frozenset[str]] = {}
        idle: dict[str, frozenset[str]] = {}
        for name, live in self._masters.items():
            if isinstance(live, Unreadable):
                planning[name] = frozenset[str]()
                continue
            troubles = map(str.split, live.value.troubles)
            flows = (words[1] for words in troubles if len(words) == 2 and words[0] == "flow")
            (planning if live.value.plans else idle)[name] = frozenset(flows)
        return planning or idle

    def _mine(self, masters: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """The flows that this master looks after. What every master has trouble with, each does as
        far as it can."""
        hard = frozenset().union(*masters.values())
        mine = set()
        for name, flow in self._flows.items():
            able: Collection[str] = masters.keys()
            if name in hard:
                able = [master for master, cannot in masters.items() if name not in cannot]
            if not flow.set_aside and looks_after(name, able) in (self._me, None):
                mine.add(name)
        return frozenset(mine)

    def _overdue(
        self, draining: Iterable[tuple[FlowView, str]], limit_seconds: float
    ) -> frozenset[str]:
        """Each time that it is to let a task go an owner has its own time for it."""
        keys = [f"{flow.name}/{name}/{flow.tasks[name].mark}" for flow, name in draining]
        late = self._moments.lasting("draining", keys, limit_seconds)
        return frozenset(key.rpartition("/")[0] for key in late)

    def _see_drained(self) -> frozenset[str]:
        """The partitions that take no more and of which everything is acked; acks never go back."""
        ending = self._ending()
        left = [key for key in ending if key not in self._drained]
        wanted = [ack_path(flow, name) for flow, name, _ in (ending[key] for key in left)]
        reached = {
            key
            for key, ack in zip(left, self._store.read_each(wanted), strict=True)
            if partitions.is_drained(ending[key][2], ack)
        }
        if len(reached) < len(left):
            self._moments.look_in(UNWATCHED_SECONDS)
        if reached or not self._drained <= ending.keys():
            self._drained = frozenset((self._drained & ending.keys()) | reached)
        return self._drained

    def _ending(self) -> dict[str, tuple[str, str, Known]]:
        """Those that take no more, as ``Snapshot.drained`` names them: flow, name, and its end."""
        found = {
            name: (journal.flow, name, partitions.of_journal(journal))
            for name, journal in self._journals.items()
            if journal.closed
        }
        for flow, view in self._flows.items():
            for name in view.ending:
                known = partitions.of_discovered(view.partitions[name])
                found[f"{flow}/{name}"] = (flow, name, known)
        return found

    def _intents(self) -> dict[str, dict[str, IntentView]]:
        """Two writes a batch are too many to be told of, or to be read for all flows."""
        flows = sorted(self._noted & self._flows.keys())
        tasks = self._store.children_many([paths.intents(flow) for flow in flows])
        names = [(flow, task) for flow, some in zip(flows, tasks, strict=True) for task in some]
        found = self._store.read_each([paths.intent(*name) for name in names])
        intents: dict[str, dict[str, IntentView]] = {flow: {} for flow in flows}
        for (flow, task), intent in zip(names, found, strict=True):
            if intent is not None:
                record = intent.value if isinstance(intent, Versioned) else None
                intents[flow][task] = IntentView(record, intent.version)
        if any(intent.open for of_flow in intents.values() for intent in of_flow.values()):
            self._moments.look_in(UNWATCHED_SECONDS)
        return intents

    def _committing(self) -> frozenset[str]:
        """Read after the acks: a commit that they have moved for is then listed or finished.

        A flow that has no collect task and had no commit begins none.
        """
        ending = {
            name: flow
            for name, flow in self._flows.items()
            if flow.record.state in ("stopped", "deleted")
            and self._without_commits.get(name) is not flow
        }
        commits = self._store.children_many([paths.commits(name) for name in ending])
        found = {name for name, some in zip(ending, commits, strict=True) if some}
        self._without_commits = {
            name: flow
            for name, flow in self._flows.items()
            if (flow is self._without_commits.get(name))
            or (name in ending and name not in found and not _is_collected(flow))
        }
        if found:
            self._moments.look_in(UNWATCHED_SECONDS)
        return frozenset(found)


def looks_after(flow: str, masters: Collection[str]) -> str | None:
    """Which of the live masters plans ``flow``, by rendezvous hashing (Thaler and Ravishankar).

    It spreads the work and is no lock: two masters that disagree only lose a compare-and-set.
    """
    return max(
        masters,
        key=lambda master: hashlib.blake2b(f"{flow}\0{master}".encode(), digest_size=8).digest(),
        default=None,
    )


def _with(known: Mapping[str, V], changed: Mapping[str, V | None]) -> dict[str, V]:
    """The same mapping when nothing changed, else a sorted copy; None stands for gone."""
    if not changed and isinstance(known, dict):
        return known
    together = {**known, **changed}
    return {name: value for name in sorted(together) if (value := together[name]) is not None}


def _paths_of(texts: Iterable[str]) -> list[Path]:
    """Those that a master reads, in order."""
    found: list[Path] = []
    for text in sorted(texts):
        row = table.find(text)
        if row is not None and row.pattern in READ:
            names = row.matches(text)
            assert names is not None
            found.append(row(*names))
    return found


def _is_collected(flow: FlowView) -> bool:
    return any(task.kind == COLLECT for task in flow.tasks.values())


def _lacks_a_text(flow: FlowView) -> bool:
    """Whether a revision of it could not be read; of those no watch tells."""
    return bool(flow.problem) or any(one.path.row is paths.revision for one in flow.unreadable)


def _pages(node: str, assignment: Assignment) -> list[Path]:
    return [paths.assignment_page(node, str(number)) for number in range(assignment.pages)]


def _first_name(path: Path) -> str:
    """The flow, node or journal that a path belongs to; empty when it has no name in it."""
    names = path.row.matches(str(path))
    return names[0] if names else ""


def _same(known: Found[Any], found: Found[Any]) -> bool:
    if known is None or found is None:
        return known is found
    return (known.version, known.created) == (found.version, found.created)


def _everywhere(heard: set[str]) -> bool:
    """Whether anything may have changed: a folder is named when all below it is meant."""
    return any(str(top) in heard for top in WATCHED if top.row.record is None)


def _is(path: str, row: Row[Any]) -> bool:
    return row.matches(path) is not None
