"""What the znodes hold: one immutable dataclass a record.

A record knows neither its path nor ZooKeeper. Fields that a newer writer added are kept in
``extra`` and written back unchanged, so that a read-modify-write by an older process loses nothing.
Times are seconds since the epoch in UTC and are for people to read: nothing is decided by them.
Offsets are half-open: everything below the number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, ClassVar, Self

from zkschema.immutable import dataclass

NOTHING: Mapping[str, Any] = MappingProxyType({})

ERROR_CHARACTERS = 1000
"""Of a text that tells of an error, so many are stored."""
ERRORS_CHARACTERS = 150_000
"""All errors of one status share so many."""

PROBLEMS = 20
PROBLEM_CHARACTERS = 300
"""Of what is wrong on a node, so many are stored, each with so many characters."""

INGEST = "ingest"
COLLECT = "collect"
COPY = "copy"
DISCOVER = "discover"


def cut(text: str, most: int = ERROR_CHARACTERS) -> str:
    """At most ``most`` characters of the text; one that is cut ends in dots."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of everything stored. ``VERSION`` is the format that this code writes as ``"v"``."""

    VERSION: ClassVar[int] = 1
    extra: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    def bounded(self) -> Self:
        """The record as it is stored: what tells of an error is cut, so that it always fits."""
        return self


@dataclass(frozen=True, kw_only=True)
class Schema(Record):
    """The version of the whole tree, and the optional features that are in use.

    ``cluster`` is an id that no other cluster has; nodes keep it with their journals. Every import
    of an export gives the tree a higher ``generation``: what is absent after that may only be what
    the export did not have. A cluster with the feature ``acl`` is secured: ``certificates`` is its
    name in them, ``members`` are its operators (``operator:NAME``, or ``operator:NAME@FLOW,FLOW``
    of some flows), ``groups`` has the identity of each group in access lists, ``expelled`` are the
    members that no list names any more, the last ones, and ``admissions`` counts the changes.
    """

    version: int
    features: tuple[str, ...] = ()
    cluster: str = ""
    generation: int = 0
    certificates: str = ""
    members: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    expelled: tuple[str, ...] = ()
    admissions: int = 0


@dataclass(frozen=True, kw_only=True)
class Groups(Record):
    """The secrets of the groups in access lists, the newest first; the one before it is kept while
    lists that name it are set."""

    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class Member(Record):
    """An admitted member, with the secrets of its groups. An operator of some ``flows`` has
    patterns of their names."""

    flows: tuple[str, ...] | None = None
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class Maintenance(Record):
    """While it lasts, no task changes nodes. ``automatic``: a master began it and will end it."""

    who: str
    why: str
    since: float
    automatic: bool = False


@dataclass(frozen=True, kw_only=True)
class MaintenanceLimits(Record):
    """It begins by itself when at least ``nodes`` active nodes and more than ``enter`` of all are
    missing, and ends by itself when at most ``leave`` of them are (shares, 0 to 1). A node that is
    away for ``window_seconds`` counts neither as missing nor as active."""

    nodes: int = 5
    enter: float = 0.5
    leave: float = 0.25
    window_seconds: float = 3600.0


@dataclass(frozen=True, kw_only=True)
class Cluster(Record):
    """Settings of the whole cluster.

    ``throttles``: how many balance moves may be under way at once, in all (``balance``), to or from
    one node (``balance_per_node``) and of one flow (``balance_per_flow``); and how many collect
    tasks may be starting while lost ones are given away (``recovery``). ``chokes``: the bytes per
    second that each node may take in, by ``FLOW``, or by ``FLOW@NODE``, which counts before it.
    ``spark``: Spark's settings, key -> text in YAML (see ``flumeng.config.spark``).
    Masters remove a node that is away for ``forget_after_seconds`` (0: never) with nothing left on
    it.
    """

    maintenance: Maintenance | None = None
    maintenance_limits: MaintenanceLimits = field(default_factory=MaintenanceLimits)
    grace_seconds: float = 0.0
    drain_limit_seconds: float = 60.0
    forget_after_seconds: float = 604_800.0
    throttles: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    chokes: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    spark: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class Moves(Record):
    """The flow that began the last move that a throttle bounds. A master that begins another one
    expects the version that it read before the plans, so it has counted all that are under way."""

    flow: str = ""


ABORTED = "aborted by"
"""``Flow.went_back`` begins so when an operator ended the rollout."""


@dataclass(frozen=True, kw_only=True)
class Flow(Record):
    """What is wanted of a flow: ``running``, ``suspended``, ``stopped``, ``deleted``.

    ``deleted`` drains: sources stop, journals are collected to their end, then the flow goes.
    With ``discard`` nothing is waited for. ``went_back`` says why a rollout ended at the revision
    before; it begins with ABORTED when an operator ended it. ``rollout_paused`` and
    ``rollout_promoted`` are the revision whose rollout an operator lets stand still, or has ended
    by giving the revision to all tasks. ``handoff`` is another number each time that an operator
    wants what is read delivered at once. ``backfill_of`` is the flow of which this one delivers a
    part again, and then ends.
    """

    revision: int
    state: str = "running"
    discard: bool = False
    went_back: str = ""
    rollout_paused: int = 0
    rollout_promoted: int = 0
    handoff: int = 0
    backfill_of: str = ""

    def bounded(self) -> Self:
        return replace(self, went_back=cut(self.went_back)) if self.went_back else self


@dataclass(frozen=True, kw_only=True)
class Revision(Record):
    """One immutable version of a flow's text. ``runs`` is what its tasks run instead of it: this
    text composed with those of the flows that it reads; empty when they run this one. ``signature``
    is that of the author over the text that the tasks run, for nodes that want one."""

    text: str
    author: str
    reason: str
    time: float
    runs: str = ""
    signature: str | None = None

    @property
    def effective(self) -> str:
        """The text that the flow's tasks run. ``text`` is what its author wrote."""
        return self.runs or self.text


@dataclass(frozen=True, kw_only=True)
class PastRevision(Record):
    """What is kept of a revision of a deleted flow."""

    number: int
    author: str
    reason: str
    time: float


@dataclass(frozen=True, kw_only=True)
class Tombstone(Record):
    """Who deleted a flow, why and when; the ``revisions`` that it had last, and the last ``text``,
    which is empty when it was too long to be kept."""

    who: str
    reason: str
    time: float
    revisions: tuple[PastRevision, ...] = ()
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Partition(Record):
    """``weight``: dimension -> what reading it costs, like ``{"slots": 1, "mb_per_second": 4}``;
    empty stands for what the flow says of all its partitions. ``start`` is the offset from which a
    cursor reads that never acked; with an ``end``, nothing comes at that offset or after it."""

    weight: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    start: int = 0
    end: int | None = None


@dataclass(frozen=True, kw_only=True)
class ScalingDecision(Record):
    """Why a flow was to have ``tasks`` collect tasks, of which it had ``before``; both are the same
    when it decided to leave the number. ``kind`` is one of the words of
    ``flumeng.control.planner.scaling``.
    """

    time: float
    kind: str
    before: int
    tasks: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Scaling(Record):
    """How many collect tasks a flow is to have that has as many as its events need; its last
    decisions, oldest first. ``rate`` is how many events per second a task was last seen to take
    while it had more than it could do; 0 when that was never seen."""

    tasks: int
    rate: float = 0.0
    decisions: tuple[ScalingDecision, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Partitions(Record):
    """The partitions that discovery found; with ``buckets`` they lie in that many buckets.
    ``epoch`` is that of the discovery task which wrote them last: one with a lower epoch writes no
    more. ``scope`` is what it was to look for last, in words of the sources' own. ``held``: what is
    not registered before an operator accepts it, by an id that is never used again -> why.
    ``accepted``: the ids of those that an operator lets go on -> where they are to begin
    (``earliest``, ``latest``, a time). ``scaling`` is there once the flow's number of collect tasks
    was decided about."""

    partitions: Mapping[str, Partition] = field(default_factory=lambda: NOTHING)
    buckets: int = 0
    epoch: int = 0
    scope: tuple[str, ...] | None = None
    held: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    accepted: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    scaling: Scaling | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedTask(Record):
    """One task of a flow.

    ``kind`` is INGEST, COLLECT or DISCOVER; a node needs the role ``collect`` for the last two.
    ``state`` is ``assigned``, ``draining`` (its owner is to let go) or ``waiting`` (nobody can run
    it). ``target`` is the node that a draining task goes to, when that is decided already; ``mark``
    is another number each time that it begins to drain, out of those of the epochs. ``revision`` is
    the one to run; 0 stands for the flow's current one. The nodes ``standbys`` are ready to run it
    when its own is lost or may not keep it, the first of them first; its own is none of them.
    """

    kind: str
    node: str | None
    epoch: int
    state: str
    partitions: tuple[str, ...] = ()
    target: str | None = None
    mark: int = 0
    revision: int = 0
    why: str = ""
    standbys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EndedTask(Record):
    """The time of a task with one owner, which is over. ``how``: ``succeeded`` (all that it was to
    read is read, or it is not needed any more), ``superseded`` (somebody had claimed its partitions
    under a higher epoch), ``stopped`` (an operator or the plan took it away) or ``failed``."""

    task: str
    node: str
    epoch: int
    how: str
    why: str
    time: float


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """Who runs what of a flow; ``epoch`` is the highest that any of its tasks ever got.

    ``revision`` is the last one that every task has run, to which a rollout goes back. ``sharing``:
    a plan too large for one transaction is being written in which partitions change tasks. With
    ``buckets`` the tasks lie in that many buckets. ``ended``: how its tasks have ended; bounded,
    the newest last.
    """

    epoch: int = 0
    tasks: Mapping[str, PlannedTask] = field(default_factory=lambda: NOTHING)
    revision: int = 0
    sharing: bool = False
    buckets: int = 0
    ended: tuple[EndedTask, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Joined(Record):
    """Of a partition whose lines are joined to events, while the ack is ``offset``: all events that
    begin below ``emitted`` are in the sinks. Lines between the two are read again, and joined as
    before only while the flow's ``rules`` for that are the same; another ack says nothing of it.
    Where lines are pieces of messages, those below ``sure`` are read again only since they tell
    whether the next line of their stream goes on with a message; 0 is as ``offset``."""

    offset: int
    emitted: int
    rules: str
    sure: int = 0


@dataclass(frozen=True, kw_only=True)
class Ack(Record):
    """Everything of the partition below ``offset`` is durably in every sink of the cursor, and is
    not read again. ``joined`` is there when events above it are in the sinks too. The leader of
    ``leader_epoch`` had all below ``offset`` in its log; None where no leaders are elected, and
    where ``offset`` is an operator's."""

    epoch: int
    offset: int
    joined: Joined | None = None
    leader_epoch: int | None = None

    @property
    def emitted(self) -> int:
        """All events that begin below are in the sinks."""
        known = self.joined is not None and self.joined.offset == self.offset
        return self.joined.emitted if self.joined is not None and known else self.offset


@dataclass(frozen=True, kw_only=True)
class Lease(Record):
    """Journals keep what a cursor has not read until ``keep_seconds`` after this was written, by
    ZooKeeper's clock. ``renewed`` is the reader's wall clock, for people. ``holder`` is an id of
    the reader that took the cursor last, and alone moves its acks; ``reader`` says for people who
    that is."""

    holder: str
    reader: str
    keep_seconds: float
    renewed: float


@dataclass(frozen=True, kw_only=True)
class Commit(Record):
    """A sink commit that is decided but perhaps not finished: rename each source to its target."""

    epoch: int
    staging: tuple[str, ...]
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Node(Record):
    """A host that may run work. ``uuid`` tells it from another host of the same name; ``claims``
    and ``claimant``, how often it started and who did last, from a copy of its data directory. A
    master writes into ``away_since`` when it has missed the node for a while, and 0 when it is
    back. ``spark`` are settings of Spark that count before those of the cluster."""

    uuid: str
    roles: tuple[str, ...]
    desired: str = "active"
    zone: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    capacity: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    away_since: float = 0.0
    claims: int = 0
    claimant: str = ""
    spark: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class AssignedTask(Record):
    """``state`` is ``running``, ``draining`` or ``standby``. A standby gets ready and writes
    nothing; its epoch is 0, so that a node that takes it for a task is fenced by the owner.
    ``handoff`` is the flow's: with each new number the task delivers at once what has come."""

    flow: str
    task: str
    kind: str
    epoch: int
    revision: int
    state: str
    partitions: tuple[str, ...] = ()
    handoff: int = 0


@dataclass(frozen=True, kw_only=True)
class Assignment(Record):
    """All that one node should run now. ``chokes``: flow -> bytes per second that may come in.
    ``spark``: the settings of Spark with which it collects. ``journals``: the replicated journals
    that it holds or is to hold a copy of, each with the version of its record: whoever is told of
    another one reads that.

    With ``pages`` the tasks lie in that many pages below the assignment's own znode.
    """

    tasks: tuple[AssignedTask, ...] = ()
    chokes: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    spark: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    journals: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    pages: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskStatus(Record):
    """``state`` is ``starting``, ``running``, ``retrying``, ``failed``, ``stopped`` or ``standby``:
    ready to take over. A task that retries owns its partitions, and ``error`` says what its sink
    answered last. One that runs may have an ``error`` too: some of its journals stand still.
    ``epoch_seen``: an ack is owned under this epoch, which is higher than the task's own; 0 when
    none is. ``health``: ``unhealthy`` once it has failed several times in a row, ``unreachable``
    when that was because nobody answered; empty again when it has succeeded as often."""

    epoch: int
    revision: int
    state: str
    error: str | None = None
    epoch_seen: int = 0
    health: str = ""

    @property
    def works(self) -> bool:
        """Whether it owns its partitions and writes, or tries to."""
        return self.state in ("running", "retrying")


@dataclass(frozen=True, kw_only=True)
class NodeStatus(Record):
    """What a node says of itself; ``assignment_version`` is the one that it has applied.

    A task's key is ``flow/task``. A task that is not listed does not run here. ``journals_told``:
    no journal lies on its disk that it has not registered. ``problems``: a path that it cannot
    read, or a part of it that is not well -> why; some of them when they are many. ``spark_ui``:
    the URL of its collector's Spark interface, an empty text while there is none.
    """

    assignment_version: int
    journals_told: bool = True
    tasks: Mapping[str, TaskStatus] = field(default_factory=lambda: NOTHING)
    problems: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    spark_ui: str = ""

    def bounded(self) -> Self:
        """Of many errors, each is cut to an equal share of what there is room for."""
        some = sorted(self.problems.items())[:PROBLEMS]
        problems = {cut(path, 200): cut(why, PROBLEM_CHARACTERS) for path, why in some}
        failing = sum(task.error is not None for task in self.tasks.values())
        if not failing:
            return replace(self, problems=problems)
        most = min(ERROR_CHARACTERS, ERRORS_CHARACTERS // failing)
        tasks = {
            key: task if task.error is None else replace(task, error=cut(task.error, most))
            for key, task in self.tasks.items()
        }
        return replace(self, tasks=tasks, problems=problems)


@dataclass(frozen=True, kw_only=True)
class StoryLine(Record):
    """What changed of ``who`` (the node, a child process, a task), and why; for people to read."""

    time: float
    who: str
    event: str
    before: str
    after: str
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class Story(Record):
    """The last things that happened on a node, oldest first; also of its earlier lives."""

    lines: tuple[StoryLine, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LiveNode(Record):
    """``addresses`` is where each ingest worker of the node serves its journals (host:port), an
    empty text while it does not; ``discovery`` is where its discovery process tells of partitions,
    ``collector`` where its collector tells what became of the last events. ``schema`` is the newest
    version of the tree that it can use, ``boot`` the id of its host's boot and container, in which
    ``pid`` counts. ``identity`` is whom its certificate is for, ``certificates`` (PEM, with the
    chain) and ``signature`` prove that the session is that node's; empty without one."""

    uuid: str
    incarnation: str
    addresses: tuple[str, ...] = ()
    discovery: str = ""
    collector: str = ""
    pid: int
    version: str
    since: float
    schema: int = 1
    boot: str = ""
    identity: str = ""
    certificates: str = ""
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class LiveMaster(Record):
    """``plans`` is not set while the master leaves all its flows to the others. ``troubles``: what
    it cannot do (``flow F``, ``node N``, ``cluster``) -> why; others take over flows in there.
    ``schema`` is the newest version of the tree that it can use, ``identity`` whom its certificate
    is for. A master that plans writes the record again every ``renew_seconds``; with 0 it never
    does."""

    host: str
    pid: int
    version: str
    since: float
    schema: int = 1
    plans: bool = True
    identity: str = ""
    renew_seconds: float = 0.0
    troubles: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class Journal(Record):
    """``end`` is set when the journal is closed: it will never hold an event at or above it.
    ``gone``: nobody needs it and no disk has it any more, so that masters are to remove this.
    ``copies``: the nodes that are to hold one that is replicated, its primary among them; then
    ``in_sync`` names copies, each as ``NODE/ID``, and ``lineage`` the history of its events:
    another one begins where an operator gave some up. ``leaving``: the nodes among ``copies`` that
    hold theirs until others are in sync."""

    flow: str
    node: str
    primary: str
    term: int
    in_sync: tuple[str, ...]
    closed: bool = False
    end: int | None = None
    gone: bool = False
    copies: tuple[str, ...] = ()
    lineage: str = ""
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Queue(Record):
    """The head of a work queue: ``next`` is the number that the next item of each lane gets,
    under this ``epoch``. ``id`` is of this queue, and of no other that its flow ever had;
    ``complete``: all that the flow is to read is in it. ``rules`` say how what was seen is
    remembered. ``retried``: how many items of a lane got a new number, to be read again."""

    epoch: int
    id: str = ""
    rules: str = ""
    complete: bool = False
    next: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    retried: Mapping[str, int] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class QueueSegment(Record):
    """Items of one lane, numbered from ``first`` on without a gap, in columns: where each is, its
    size in bytes, when it was written last (microseconds since the epoch), and what its store calls
    this content of it. ``starts``, when there are any: the position in it that is read first."""

    first: int
    locations: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    modified: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueueFailure(Record):
    """An item of a lane that was passed over at ``position``, why and when. An operator may want
    it to be read again from there on (``retry``) or given up (``skip``): the discovery task does so
    once its segment is gone, and removes this."""

    location: str
    size: int
    modified: int
    position: int
    why: str
    time: float
    tag: str = ""
    revision: int = 0
    wanted: str = ""


@dataclass(frozen=True, kw_only=True)
class Polls(Record):
    """What the due times of a queue's lane were answered with, in columns, one entry for each file:
    the ``numbers`` of the items, when they were ``due`` (microseconds since the epoch), and which
    ``rows`` of the answer the file has, from which ``positions`` on. The due time ``next`` is asked
    next, from ``state`` on; ``part`` rows of its answer are there already. ``queue`` is the id of
    the queue that this is about, and ``path`` is where the files lie."""

    queue: str
    path: str
    next: int = 0
    part: int = 0
    state: str = ""
    numbers: tuple[int, ...] = ()
    due: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueueSeen(Record):
    """A share of what was listed: see ``flumeng.connectors.objects.seen``. ``data`` is it in
    Base64; else ``file`` is what the file is called that has it, where the flow's ``seen_in``
    says."""

    data: str = ""
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class Intent(Record):
    """The batch that a task has decided to write: ``ranges`` is partition -> first and end offset.

    It is repeated exactly, by whoever owns the task, cut into as many ``splits`` and through the
    filters and sinks of its ``revision``, until its acks are written; from then on ``ranges`` is
    empty. Targets remember ``number`` under the name ``series``, which is never used again; it is
    empty before the first batch. Nobody with an epoch below ``epoch`` decides a batch: masters
    raise it when partitions leave the task. Where lines are joined, partitions that are ``flushed``
    wait for no line that may belong to their last events. What could not be read is ``left_out``,
    from where to where, and stays so when it could be read after all: a target that has the batch
    takes nothing more of it.
    """

    epoch: int
    series: str
    number: int
    revision: int
    splits: int
    ranges: Mapping[str, tuple[int, int]]
    flushed: tuple[str, ...] = ()
    left_out: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class PushSource(Record):
    """What a push brings: the ``digest`` of the content of the ``inventory`` of that name, its
    ``revision`` where it is under version control, and who pushes it, and why. ``sites`` are all to
    which it is to go. A rollback says which push it ``undoes``, or to which one it ``returns_to``,
    and has no digest."""

    push: str
    inventory: str
    digest: str
    author: str
    reason: str
    time: float
    revision: str = ""
    sites: tuple[str, ...] = ()
    undoes: str = ""
    returns_to: str = ""


@dataclass(frozen=True, kw_only=True)
class PushClaim(Record):
    """The process that pushes now; nobody else does until it lets go, or has certainly ended.

    ``boot`` is the id of its host's boot and container, in which ``pid`` counts.
    """

    who: str
    push: str
    boot: str
    pid: int
    since: float


@dataclass(frozen=True, kw_only=True)
class Push(Record):
    """The push that made this cluster what it is, and what of the cluster pushes look after.

    ``resources``: key -> digest of the value that a resource got from a push or was adopted with.
    ``state``: ``applying`` until the cluster was seen to be no worse than before, when only the
    ``baseline`` was wrong in it; then ``applied``, or ``failed`` with ``why``. ``next_entry`` is
    the number of the next entry below; those that are there are one after the other.
    """

    source: PushSource | None = None
    state: str = "applied"
    why: str = ""
    baseline: tuple[str, ...] = ()
    resources: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    next_entry: int = 0
    claim: PushClaim | None = None

    def bounded(self) -> Self:
        return replace(self, why=cut(self.why)) if self.why else self


@dataclass(frozen=True, kw_only=True)
class ResourceChange(Record):
    """What a push made of one resource: the value ``before`` (None: it was not there) and the
    digest of the one ``after``. ``owned_before`` is the digest that pushes knew before; None: it
    was none of theirs."""

    before: str | None
    after: str | None
    owned_before: str | None


@dataclass(frozen=True, kw_only=True)
class PushEntry(Record):
    """One transaction of a push; ``verb`` is ``apply``, ``rollback`` or ``adopt``."""

    verb: str
    source: PushSource
    changes: Mapping[str, ResourceChange] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class Audit(Record):
    who: str
    command: str
    reason: str
    time: float

    def name(self, suffix: str) -> str:
        """What its znode is called, so that names sort by time."""
        return f"{datetime.fromtimestamp(self.time, UTC):%Y%m%dT%H%M%S.%f}-{suffix}"
