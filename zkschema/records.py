"""The records of the znodes: one immutable dataclass each.

Fields of a newer writer are kept in ``extra`` and written back. Times without a unit are seconds
since the epoch in UTC. They are for people: only ``Node.down_since`` decides anything. An offset
stands for everything below it.
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
"""The longest error stored in a record."""
ERRORS_CHARACTERS = 150_000
"""The most characters stored of all task errors of one node's status together."""

PROBLEMS = 20
PROBLEM_CHARACTERS = 300
"""The most problems stored in a node's status, and the most characters of each."""

INGEST = "ingest"
COLLECT = "collect"
REPLICA = "replica"
DISCOVER = "discover"
GATEWAY = "gateway"


def cut(text: str, most: int = ERROR_CHARACTERS) -> str:
    """At most ``most`` characters of the text; a cut one ends in dots."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of everything stored. ``VERSION`` is the format that this code writes as ``"v"``."""

    VERSION: ClassVar[int] = 1
    extra: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    def bounded(self) -> Self:
        """Return the record as it is stored; some kinds of records cut long errors."""
        return self


@dataclass(frozen=True, kw_only=True)
class Schema(Record):
    """The version of the tree, and the features in use. ``cluster`` is a unique id. Every import of
    an export raises ``generation``: later changes of the exported cluster are lost. A cluster with
    the feature ``acl`` is secured: ``certificates`` is its name in certificates, ``members`` are
    its operators (``operator:NAME``, or ``operator:NAME@FLOW,FLOW`` of some flows), ``groups`` the
    identities of groups in access lists, ``expelled`` the last members expelled. ``admissions``
    counts changes of members."""

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
    """The secrets of each group, newest first; older ones stay while access lists are replaced."""

    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class Member(Record):
    """An admitted member with its groups' secrets. ``flows``: an operator's patterns; None: all."""

    flows: tuple[str, ...] | None = None
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class Maintenance(Record):
    """Maintenance mode: tasks stay on their nodes, also on one that is down; moves under way
    complete. ``automatic``: a master began the mode and will end it."""

    who: str
    why: str
    since: float
    automatic: bool = False


@dataclass(frozen=True, kw_only=True)
class MaintenanceLimits(Record):
    """Automatic maintenance begins when at least ``nodes`` active nodes, and a share of them above
    ``enter``, are missing. It ends when that share is at most ``leave``. A node down for
    ``window_seconds`` no longer counts; with 0 each counts."""

    nodes: int = 5
    enter: float = 0.5
    leave: float = 0.25
    window_seconds: float = 3600.0


@dataclass(frozen=True, kw_only=True)
class Cluster(Record):
    """Settings of the cluster. ``throttles`` limit concurrent balance moves in all (``balance``,
    1 if absent), per node and per flow (``balance_per_node``, ``balance_per_flow``), and tasks that
    start at once while a node is down (``recovery``). ``chokes``: bytes per second and node by
    ``FLOW``, or ``FLOW@NODE``, which takes precedence. ``spark``: settings, key -> text in YAML.
    Nodes down for ``forget_after_seconds`` (0: never) with nothing left on them are removed.
    ``site``: the cluster's name among sites that read each other's flows, or ""."""

    maintenance: Maintenance | None = None
    maintenance_limits: MaintenanceLimits = field(default_factory=MaintenanceLimits)
    grace_seconds: float = 0.0
    drain_limit_seconds: float = 60.0
    forget_after_seconds: float = 604_800.0
    throttles: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    chokes: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    spark: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    site: str = ""


@dataclass(frozen=True, kw_only=True)
class Failover(Record):
    """The time without a site: the flows that are ``paused`` because they read it, and the standby
    flows that were ``started`` instead."""

    since: float
    who: str
    paused: tuple[str, ...] = ()
    started: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Site(Record):
    """Another site whose flows may be read: its gateways (host:port), and the SHA-256 fingerprint
    of its certificate authority, "" for an open cluster. ``bytes_per_second``, 0 for no limit: of
    all flows that read it, at each gateway. ``at``: when they read, "" for at any time.
    ``standby``: flows that a failover starts. ``failover``: set from a failover to the failback."""

    gateways: tuple[str, ...]
    authority: str = ""
    bytes_per_second: int = 0
    at: str = ""
    standby: tuple[str, ...] = ()
    failover: Failover | None = None


@dataclass(frozen=True, kw_only=True)
class Contact(Record):
    """The last answer of the site that a flow reads. ``unread``: its journals that the flow had not
    acked up to their end -> first and end seq; ``more``: the number of other such journals."""

    unread: Mapping[str, tuple[int, int]] = field(default_factory=lambda: NOTHING)
    more: int = 0


@dataclass(frozen=True, kw_only=True)
class Moves(Record):
    """The flow that began the last throttled move. A master writes this with each such move, and
    expects the version that it read before the plans: so it has counted all moves under way."""

    flow: str = ""


ABORTED = "aborted by"
"""Prefix of ``Flow.went_back`` when an operator ended the rollout."""


@dataclass(frozen=True, kw_only=True)
class Flow(Record):
    """``state`` is ``running``, ``suspended``, ``stopped`` or ``deleted``, which first drains the
    journals unless ``discard`` is set. ``went_back`` says why a rollout ended at the revision
    before. ``rollout_paused`` and ``rollout_promoted`` name the revision whose rollout an operator
    paused or gave to all tasks. A new ``handoff`` number asks to deliver at once. ``backfill_of``
    is the flow of which this one delivers a part again."""

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
    """One immutable version of a flow's text. ``runs`` is the text composed with the flows that it
    reads, or "". ``signature`` is the author's, over the text that the tasks run."""

    text: str
    author: str
    reason: str
    time: float
    runs: str = ""
    signature: str | None = None

    @property
    def effective(self) -> str:
        """The text that the flow's tasks run."""
        return self.runs or self.text


@dataclass(frozen=True, kw_only=True)
class PastRevision(Record):
    """A revision of a deleted flow."""

    number: int
    author: str
    reason: str
    time: float


@dataclass(frozen=True, kw_only=True)
class Tombstone(Record):
    """A deleted flow's end; its last ``revisions`` and, unless too long, its ``text``."""

    who: str
    reason: str
    time: float
    revisions: tuple[PastRevision, ...] = ()
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Partition(Record):
    """``weight``: dimension -> cost, like ``{"slots": 1, "mb_per_second": 4}``; empty for the
    flow's default. ``start``: offset at which a cursor without ack begins. ``end``: offset at which
    reading ends, if any."""

    weight: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    start: int = 0
    end: int | None = None


@dataclass(frozen=True, kw_only=True)
class ScalingDecision(Record):
    """Why a flow should have ``tasks`` after ``before``. ``kind`` is a word of ``scaling``."""

    time: float
    kind: str
    before: int
    tasks: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Scaling(Record):
    """The number of collect tasks of an autoscaled flow; its last decisions, oldest first.
    ``rate``: events per second that a busy task was last seen to take, or 0."""

    tasks: int
    rate: float = 0.0
    decisions: tuple[ScalingDecision, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Partitions(Record):
    """Discovered partitions; when ``buckets`` is not 0, they lie in as many znodes below this one.
    ``epoch`` is the last writer's: a task with a lower one may not write. ``scope``: the objects of
    the last search, in the sources' words. ``held``: partitions that wait for an operator, unique
    id -> why; ``accepted``: id -> where they begin (``earliest``, ``latest``, a time)."""

    partitions: Mapping[str, Partition] = field(default_factory=lambda: NOTHING)
    buckets: int = 0
    epoch: int = 0
    scope: tuple[str, ...] | None = None
    held: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    accepted: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    scaling: Scaling | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedTask(Record):
    """``kind`` is INGEST, COLLECT or DISCOVER. ``state`` is ``assigned``, ``draining`` (the node is
    to release the task, to ``target`` if decided; each drain has another ``mark``) or ``waiting``
    (no node can run the task). ``revision`` 0 is the flow's current one. ``standbys``: other
    nodes that are ready to take over, in this order."""

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
    """A task's time with one owner, which is over. ``how``: ``succeeded`` (nothing left to read),
    ``superseded`` (its partitions were claimed under a higher epoch), ``stopped`` or ``failed``."""

    task: str
    node: str
    epoch: int
    how: str
    why: str
    time: float


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """The tasks of a flow and their nodes. ``epoch`` is the highest ever given, ``revision`` the
    last that every task has run. ``sharing``: partitions change tasks in several transactions. With
    ``buckets``, the tasks lie in as many znodes below. ``ended``: past tasks, newest last."""

    epoch: int = 0
    tasks: Mapping[str, PlannedTask] = field(default_factory=lambda: NOTHING)
    revision: int = 0
    sharing: bool = False
    buckets: int = 0
    ended: tuple[EndedTask, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Joined(Record):
    """Lines joined to events at ack ``offset``: all events that begin below ``emitted`` are in the
    sinks. Lines from ``offset`` on are read again, and joined as before only under the same
    ``rules``. Lines below ``sure`` (0: ``offset``) show if the next one continues a message."""

    offset: int
    emitted: int
    rules: str
    sure: int = 0


@dataclass(frozen=True, kw_only=True)
class Ack(Record):
    """Everything below ``offset`` is durably in every sink of the cursor; ``joined`` is set when
    events above ``offset`` are too. ``leader_epoch`` is that of the partition's leader which had
    all below ``offset``; None without leaders, or when an operator has set the offset."""

    epoch: int
    offset: int
    joined: Joined | None = None
    leader_epoch: int | None = None

    @property
    def emitted(self) -> int:
        """All events that begin below are in the sinks. Ignores ``joined`` of another offset."""
        valid = self.joined is not None and self.joined.offset == self.offset
        return self.joined.emitted if self.joined is not None and valid else self.offset


@dataclass(frozen=True, kw_only=True)
class Lease(Record):
    """Journals keep events that a cursor has not read until ``keep_seconds`` after this was
    written, by ZooKeeper's clock. Only ``holder`` moves its acks; ``reader`` and ``renewed`` are
    for people. ``made`` and ``failover``: see ``LeaseRequest``, "" and 0 for other readers."""

    holder: str
    reader: str
    keep_seconds: float
    renewed: float
    made: str = ""
    failover: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Gap(Record):
    """Events [``start``, ``end``) of a journal that a reader had not read and that are given up."""

    journal: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Break(Record):
    """Events given up although a lease of another site was to keep them. ``time`` is in seconds
    since the epoch, ``id`` changes with the content. ``gaps``: the last ones; ``events`` counts
    all. ``away``: the reader has not returned, so more events may be given up. ``made``: that of
    the lease. ``newest``: the transaction that made the newest journal of that time; 0 from an
    older flumeng. ``at_least``: some events are not counted."""

    id: str
    reader: str
    why: str
    time: float
    events: int
    gaps: tuple[Gap, ...] = ()
    away: bool = False
    made: str = ""
    newest: int = 0
    at_least: bool = False


@dataclass(frozen=True, kw_only=True)
class Breaks(Record):
    """The broken leases of a flow by cursor, until an operator acknowledges each."""

    cursors: Mapping[str, Break] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class Link(Record):
    """The state of a flow's link to the ``site`` that it reads, as discovery sees it. Times are in
    seconds since the epoch by this site's clocks. ``renewed``: the lease's last renewal, written
    now and then. ``down_since``: 0 while a gateway answers; ``why`` none did last, and whether one
    was ``silent`` until the time limit. ``downs``: when that began, the last times.
    ``answer_seconds``: of a slow link, else 0. ``room``: the share of a journal's room that the
    ``events`` and ``bytes`` kept for this flow take. ``broke``: the last break, until an operator
    acknowledges its id (``acknowledged``)."""

    site: str
    source: str
    keep_seconds: float
    renewed: float = 0.0
    down_since: float = 0.0
    why: str = ""
    silent: bool = False
    downs: tuple[float, ...] = ()
    answer_seconds: float = 0.0
    room: float = 0.0
    events: int = 0
    bytes: int = 0
    broke: Break | None = None
    acknowledged: str = ""


@dataclass(frozen=True, kw_only=True)
class Commit(Record):
    """A decided, perhaps unfinished sink commit: rename each source to its target."""

    epoch: int
    staging: tuple[str, ...]
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Node(Record):
    """A host that may run work. ``uuid`` tells hosts of one name apart; ``claims`` and ``claimant``
    detect copied data directories. ``down_since`` is written by masters; 0 when the node is up.
    ``spark`` settings override the cluster's."""

    uuid: str
    roles: tuple[str, ...]
    desired: str = "active"
    zone: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    capacity: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    down_since: float = 0.0
    claims: int = 0
    claimant: str = ""
    spark: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class AssignedTask(Record):
    """``state`` is ``running``, ``draining`` or ``standby``. A standby writes nothing; its epoch is
    0, which any owner fences. A new ``handoff`` number asks to deliver at once."""

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
    """All that one node should run now. ``chokes``: flow -> bytes per second. ``spark``: Spark's
    settings. ``journals``: replicated journals that the node holds or is to hold, with the versions
    of their records. When ``pages`` is not 0, the tasks lie in as many znodes below this one."""

    tasks: tuple[AssignedTask, ...] = ()
    chokes: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    spark: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    journals: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    pages: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskStatus(Record):
    """``state`` is ``starting``, ``running``, ``retrying``, ``failed``, ``stopped`` or ``standby``.
    A retrying task owns its partitions. ``error``: why the task does not run, or the trouble of a
    running one. ``epoch_seen``: a higher epoch in the task's acks or intent, or 0. ``health``:
    ``unhealthy`` or ``unreachable`` after several failures in a row, else ""."""

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
    """A node's report. ``assignment_version``: that of the applied assignment. Tasks
    (``flow/task``) that are missing do not run. ``journals_told``: all journals on the node's disk
    are registered. ``problems``: path or part -> problem, some of them. ``spark_ui``: URL or ""."""

    assignment_version: int
    journals_told: bool = True
    tasks: Mapping[str, TaskStatus] = field(default_factory=lambda: NOTHING)
    problems: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    spark_ui: str = ""

    def bounded(self) -> Self:
        """Keep PROBLEMS problems, and cut errors to equal shares of ERRORS_CHARACTERS."""
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
    """A change of the node, a child process or a task, and its cause; for people to read."""

    time: float
    who: str
    event: str
    before: str
    after: str
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class Story(Record):
    """The last changes on a node, oldest first, also by its earlier processes."""

    lines: tuple[StoryLine, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LiveNode(Record):
    """``addresses``: where each ingest worker serves its journals (host:port), or "";
    ``discovery``, ``collector``, ``gateway``: where these processes answer. ``schema``: the newest
    tree version that it can use. ``boot``: id of the host's boot and container, in which ``pid``
    counts. ``identity``, ``certificates`` (PEM chain) and ``signature`` prove that the session is
    that node's, or are "".
    """

    uuid: str
    incarnation: str
    addresses: tuple[str, ...] = ()
    discovery: str = ""
    collector: str = ""
    gateway: str = ""
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
    """``plans``: the master takes its share of flows. ``troubles``: failing work (``flow F``,
    ``node N``, ``cluster``) -> why; other masters take over such flows. ``schema``: the newest tree
    version that it can use. It rewrites the record every ``renew_seconds``; 0: never."""

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
    """``end``: the first offset above a closed journal's events. ``gone``: no disk has the journal,
    and masters remove this record. Of a replicated journal, ``replicas`` are the nodes that should
    hold it, with its primary; ``in_sync`` are replicas, as ``NODE/ID``; ``leaving`` are nodes that
    stay until others are in sync; ``lineage`` changes when an operator gives events up."""

    flow: str
    node: str
    primary: str
    term: int
    in_sync: tuple[str, ...]
    closed: bool = False
    end: int | None = None
    gone: bool = False
    replicas: tuple[str, ...] = ()
    lineage: str = ""
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Queue(Record):
    """The head of a work queue: the ``next`` item number of each lane, under this ``epoch``. ``id``
    is unique; ``complete``: all that the flow is to read is in the queue. ``rules``: how seen items
    are remembered. ``retried``: lane -> number of items that got a new number."""

    epoch: int
    id: str = ""
    rules: str = ""
    complete: bool = False
    next: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    retried: Mapping[str, int] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, kw_only=True)
class QueueSegment(Record):
    """Items of one lane, numbered from ``first``, in columns: location, size in bytes, time of
    change (microseconds since the epoch), version tag of the store, and in ``starts`` the position
    that is read first. No ``starts``: all begin at 0."""

    first: int
    locations: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    modified: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueueFailure(Record):
    """An item that was skipped at ``position``, and why. ``wanted``: an operator's decision to read
    it again (``retry``) or give it up (``skip``), or ""; the discovery task then removes this."""

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
    """Answers of a polled source, kept in ``files`` of the folder ``path``. Columns have an entry
    for each file: item ``numbers`` of the queue with the id ``queue``, ``due`` times (microseconds
    since the epoch), counts of ``rows`` and their first ``positions``. The item ``next`` is asked
    next, from ``state``; ``part`` rows of its answer are in files already."""

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
    """A share of the listed items, as Base64 ``data`` or in a ``file``."""

    data: str = ""
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class Intent(Record):
    """The batch that a task decided to write: ``ranges`` is partition -> first and end offset.

    Any owner repeats it exactly, in as many ``splits`` and through the filters and sinks of
    ``revision``, until its acks are written and ``ranges`` is empty. Targets remember ``number`` of
    the unique ``series``. A lower epoch than ``epoch`` decides no batch. ``flushed`` partitions
    wait for no continuation lines. ``left_out`` ranges were unreadable and stay out, as a target
    that has the batch takes nothing more. ``filters``: the name of the filters that another site
    ran before those of ``revision``; "" for a flow that reads none.
    """

    epoch: int
    series: str
    number: int
    revision: int
    splits: int
    ranges: Mapping[str, tuple[int, int]]
    flushed: tuple[str, ...] = ()
    left_out: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=lambda: NOTHING)
    filters: str = ""


@dataclass(frozen=True, kw_only=True)
class PushSource(Record):
    """The content of a push: the ``digest`` of the ``inventory``, its ``revision`` under version
    control, author and reason. ``sites`` are all its sites. A rollback says which push it
    ``undoes`` or ``returns_to``."""

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
    """The only process that may push now; ``pid`` counts in the host's ``boot`` and container."""

    who: str
    push: str
    boot: str
    pid: int
    since: float


@dataclass(frozen=True, kw_only=True)
class Push(Record):
    """The last push to this cluster, and the resources that pushes own in it. ``resources``: key ->
    digest of the value pushed or adopted. ``state``: ``applying`` until the cluster has no problems
    besides ``baseline``, then ``applied``; or ``failed`` with ``why``. ``next_entry``: number of
    the next ``PushEntry``, in a znode below this one."""

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
    """A pushed resource: its value ``before`` (None: absent), and the digest ``after``;
    ``owned_before``: its digest in ``Push.resources`` before, if any."""

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
    """One change. ``request``: the digest of the request with a key that asked for it; the entry's
    name then ends with the key's digest. ``answer``: the JSON of what was answered, in the last
    entry of the request."""

    who: str
    command: str
    reason: str
    time: float
    request: str | None = None
    answer: str | None = None

    def name(self, suffix: str) -> str:
        """The name of its znode; names sort by time."""
        return f"{datetime.fromtimestamp(self.time, UTC):%Y%m%dT%H%M%S.%f}-{suffix}"
