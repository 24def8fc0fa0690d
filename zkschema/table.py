"""The one table of every znode. Paths, lifetimes, size bounds and documentation derive from it.

Calling a row with names gives a typed path: ``paths.flow("web")`` is a ``ZPath[Flow]``. No other
file spells a path. Paths are relative to the cluster's chroot.

A version adds rows by ``since`` and one migration. This flumeng uses trees from ``OLDEST`` to
``VERSION``, so that it runs beside the version before. Rows of a version above the tree's are
absent and not written until ``flumeng schema migrate --finish``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Generic, TypeVar

from zkschema import records
from zkschema.records import Record

R_co = TypeVar("R_co", bound=Record, covariant=True)

VERSION = 1
OLDEST = 1
UNRELEASED = 8
"""A version that no release had; exports of such trees are imported as those of version 1."""
KIB = 1024
PLACEHOLDER = re.compile(r"\{[^}]*\}")
NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:@=+~-]{1,200}")

EVERYONE = "master node discovery collector executor gateway any-operator viewer subscriber"
NOT_NODES = "master discovery collector executor any-operator viewer subscriber own-node"
"""Readers of znodes that neither gateways nor nodes read, except the node that the path names."""
AND_GATEWAYS = f"{NOT_NODES} gateway"
CURSOR_MAKERS = "subscriber gateway"
CURSOR_OWNERS = "own-subscriber site-gateway"
"""They make cursors of readers that are not flows here, and own them."""

ROWS: list[Row[Record]] = []


@dataclass(frozen=True)
class Access:
    """Roles of a secured cluster that read and write a znode, and create and delete its children,
    separated by blanks. ``own-ROLE`` is the member that the path names (``own-member``: of any
    role), ``own-operator`` an operator of the named flow. ``operator`` is one of all flows,
    ``any-operator`` also one of some. ``primary-node`` leads the named journal, ``replica-node``
    should hold a replica. ``site-gateway`` are gateways if a site's flow reads with the named
    cursor, ``SITE:FLOW``. Administrators may do everything, every role here may read, and ``admin``
    may change the list itself."""

    write: str = ""
    create: str = ""
    delete: str = ""
    read: str = EVERYONE
    admin: str = ""


ROOT = Access(create="operator")
"""Access to the chroot: the first push creates ``/push``."""


class ZnodeNameError(ValueError):
    """A name that no znode can have."""


@dataclass(frozen=True)
class Row(Generic[R_co]):
    """One kind of znode. ``size_bytes`` bounds its data; ``record`` is None for a folder."""

    pattern: str
    record: type[R_co] | None
    lifetime: str
    writer: str
    size_bytes: int
    since: int
    doc: str
    access: Access = Access()

    def __call__(self, *names: str) -> ZPath[R_co]:
        """Return the path for ``names``. Raises ZnodeNameError."""
        expected = self._template.count("%s")
        assert len(names) == expected, f"{self.pattern} takes {expected} names, got {names}"
        for name in names:
            if not NAME.fullmatch(name):
                raise ZnodeNameError(
                    f"{name!r} cannot be the name of a znode: expected 1 to 200 letters, digits "
                    "and any of ._:@=+~-, but not . or .."
                )
        return ZPath(self._template % names, self)

    def matches(self, path: str) -> tuple[str, ...] | None:
        """Return the names in ``path`` when it is of this row, else None."""
        match = self._regex.fullmatch(path)
        return match.groups() if match else None

    @cached_property
    def _template(self) -> str:
        return PLACEHOLDER.sub("%s", self.pattern)

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(PLACEHOLDER.sub("([^/]*)", self.pattern))


@dataclass(frozen=True)
class ZPath(Generic[R_co]):
    path: str
    row: Row[R_co]

    def __str__(self) -> str:
        return self.path

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def _row(
    pattern: str,
    record: type[R_co],
    writer: str,
    doc: str,
    *,
    access: Access,
    size_bytes: int,
    lifetime: str = "persistent",
    since: int = 1,
) -> Row[R_co]:
    row = Row(pattern, record, lifetime, writer, size_bytes, since, doc, access)
    ROWS.append(row)
    return row


def _folder(pattern: str, writer: str, doc: str, *, access: Access, since: int = 1) -> Row[Record]:
    row: Row[Record] = Row(pattern, None, "persistent", writer, 0, since, doc, access)
    ROWS.append(row)
    return row


schema = _row(
    "/schema",
    records.Schema,
    "migrations",
    "version of the tree and features in use; admitted operators of a secured cluster; raised by "
    "compare-and-set",
    size_bytes=64 * KIB,
    access=Access(),
)
groups = _row(
    "/groups",
    records.Groups,
    "administrators",
    "secrets of the groups that access lists name",
    size_bytes=16 * KIB,
    access=Access(read=""),
)
members = _folder(
    "/members",
    "bootstrap",
    "admitted members of a secured cluster, besides administrators and the roles of daemons",
    access=Access(read=NOT_NODES),
)
member = _row(
    "/members/{member}",
    records.Member,
    "administrators",
    "`ROLE:NAME`: a node, an operator or a subscriber, with the secrets of its groups",
    size_bytes=16 * KIB,
    access=Access(read="own-member"),
)
cluster = _row(
    "/cluster",
    records.Cluster,
    "operators",
    "settings of the cluster: maintenance mode, throttles, grace period, chokes",
    size_bytes=64 * KIB,
    access=Access(write="operator master"),
)
sites = _folder(
    "/sites",
    "operators",
    "other sites whose flows are read here; made with the first",
    access=Access(create="operator", delete="operator", read=NOT_NODES),
)
site = _row(
    "/sites/{site}",
    records.Site,
    "operators",
    "one site: the addresses of its gateways, the fingerprint of its certificate authority, its "
    "standby flows, and the flows of a failover",
    size_bytes=512 * KIB,
    access=Access(write="operator", read=NOT_NODES),
)
all_breaks = _folder(
    "/breaks",
    "operators",
    "broken leases of other sites; made when the cluster is named among sites",
    access=Access(create="operator master gateway", delete="operator master", read=AND_GATEWAYS),
)
breaks = _row(
    "/breaks/{flow}",
    records.Breaks,
    "gateways, masters, operators",
    "leases of other sites that broke: why, when, and the events given up; until acknowledged",
    size_bytes=256 * KIB,
    access=Access(write="gateway master own-operator", read=AND_GATEWAYS),
)
moves = _row(
    "/moves",
    records.Moves,
    "masters",
    "written with each throttled move: throttles hold for all masters together",
    size_bytes=4 * KIB,
    access=Access(write="master", read=NOT_NODES),
)
flows = _folder(
    "/flows", "bootstrap", "all flows", access=Access(create="operator", delete="operator master")
)
flow = _row(
    "/flows/{flow}",
    records.Flow,
    "operators",
    "current revision and desired state",
    size_bytes=4 * KIB,
    access=Access(
        write="own-operator master discovery",
        create="own-operator master discovery",
        delete="own-operator master",
    ),
)
revisions = _folder(
    "/flows/{flow}/revisions",
    "operators",
    "the flow's revisions, bounded",
    access=Access(create="own-operator", delete="own-operator master"),
)
revision = _row(
    "/flows/{flow}/revisions/{number}",
    records.Revision,
    "operators",
    "immutable text of one revision, with author, reason and time",
    size_bytes=512 * KIB,
    access=Access(),
)
partitions = _row(
    "/flows/{flow}/partitions",
    records.Partitions,
    "discovery tasks",
    "discovered partitions, with weights; the bucket count when they are many",
    size_bytes=512 * KIB,
    access=Access(
        write="discovery own-operator",
        create="discovery",
        delete="discovery own-operator master",
        read=NOT_NODES,
    ),
)
partitions_bucket = _row(
    "/flows/{flow}/partitions/{bucket}",
    records.Partitions,
    "discovery tasks",
    "a share of the partitions",
    size_bytes=50 * KIB,
    access=Access(write="discovery", read=NOT_NODES),
)
link = _row(
    "/flows/{flow}/link",
    records.Link,
    "discovery tasks",
    "the link of a flow that reads another site: its lease there, since when it is down, gaps",
    size_bytes=64 * KIB,
    access=Access(write="discovery own-operator", read=NOT_NODES),
)
contact = _row(
    "/flows/{flow}/contact",
    records.Contact,
    "discovery tasks",
    "the last answer of the site that the flow reads: the journals with unread events",
    size_bytes=512 * KIB,
    access=Access(write="discovery", read=NOT_NODES),
)
plan = _row(
    "/flows/{flow}/plan",
    records.Plan,
    "masters",
    "task -> kind, node, epoch, state, partitions; the bucket count when they are many",
    size_bytes=512 * KIB,
    access=Access(
        write="master own-operator", create="master", delete="master own-operator", read=NOT_NODES
    ),
)
plan_bucket = _row(
    "/flows/{flow}/plan/{bucket}",
    records.Plan,
    "masters",
    "a share of the plan's tasks",
    size_bytes=512 * KIB,
    access=Access(write="master own-operator", read=NOT_NODES),
)
tombstones = _folder(
    "/tombstones",
    "bootstrap",
    "flows that were deleted, bounded",
    access=Access(create="operator", delete="operator", read=NOT_NODES),
)
tombstone = _row(
    "/tombstones/{flow}",
    records.Tombstone,
    "operators",
    "the last deletion of a flow of that name: author, reason, time, revisions and last text",
    size_bytes=512 * KIB,
    access=Access(write="operator", read=NOT_NODES),
)
all_acks = _folder(
    "/acks",
    "bootstrap",
    "acks of all flows: they change all the time, unwatched",
    access=Access(create="operator", delete="operator master"),
)
acks = _folder(
    "/acks/{flow}",
    "operators",
    "the flow's cursors",
    access=Access(create=f"own-operator {CURSOR_MAKERS}", delete="operator master"),
)
cursor = _folder(
    "/acks/{flow}/{cursor}",
    "operators",
    "one cursor's acks",
    access=Access(
        create=f"collector own-operator {CURSOR_OWNERS}",
        delete=f"collector discovery own-operator master {CURSOR_OWNERS}",
        read=NOT_NODES,
    ),
)
ack = _row(
    "/acks/{flow}/{cursor}/{partition}",
    records.Ack,
    "owner of the task",
    "high-water mark: all below the offset is durably in every sink of the cursor",
    size_bytes=4 * KIB,
    access=Access(
        write=f"collector own-operator {CURSOR_OWNERS}",
        read=f"{AND_GATEWAYS} primary-node",
        admin="master",
    ),
)
leases = _folder(
    "/leases",
    "bootstrap",
    "readers that are not flows, for which journals are kept",
    access=Access(create=CURSOR_MAKERS, delete="operator master"),
)
lease = _row(
    "/leases/{flow}@{cursor}",
    records.Lease,
    "the cursor's reader",
    "the cursor of a reader that is not a flow, such as a Spark job: its name, and how long its "
    "unread events are kept; removed by masters when it is not renewed",
    size_bytes=4 * KIB,
    access=Access(write=CURSOR_OWNERS, read=NOT_NODES),
)
all_commits = _folder(
    "/commits",
    "bootstrap",
    "sink commits of all flows, unwatched",
    access=Access(create="operator", delete="operator master", read=NOT_NODES),
)
commits = _folder(
    "/commits/{flow}",
    "operators",
    "sink commits in progress",
    access=Access(create="collector", delete="collector own-operator master", read=NOT_NODES),
)
commit = _row(
    "/commits/{flow}/{commit}",
    records.Commit,
    "owner of the task",
    "`task@uuid`: a commit decided with its acks; removed when its files are in place",
    size_bytes=512 * KIB,
    access=Access(write="collector", read=NOT_NODES),
)
nodes = _folder(
    "/nodes",
    "bootstrap",
    "all nodes ever registered",
    access=Access(create="node", delete="operator master"),
)
node = _row(
    "/nodes/{node}",
    records.Node,
    "node, operators",
    "identity, roles, zone, labels, capacity, desired state",
    size_bytes=16 * KIB,
    access=Access(
        write="own-node operator master",
        create="own-node master",
        delete="operator master",
        read=NOT_NODES,
    ),
)
assignment = _row(
    "/nodes/{node}/assignment",
    records.Assignment,
    "masters",
    "all that the node should run now; the page count when it is large",
    size_bytes=512 * KIB,
    access=Access(write="master", create="master", delete="operator master", read=NOT_NODES),
)
assignment_page = _row(
    "/nodes/{node}/assignment/{page}",
    records.Assignment,
    "masters",
    "a share of the node's assignment",
    size_bytes=512 * KIB,
    access=Access(write="master", read=NOT_NODES),
)
status = _row(
    "/nodes/{node}/status",
    records.NodeStatus,
    "node",
    "assignment version applied, state and error of each task",
    size_bytes=512 * KIB,
    access=Access(write="own-node", read=NOT_NODES),
)
story = _row(
    "/nodes/{node}/story",
    records.Story,
    "node",
    "the node's event log, for `flumeng node story`; also of a dead node",
    size_bytes=16 * KIB,
    access=Access(write="own-node", read=NOT_NODES),
)
live = _folder("/live", "bootstrap", "processes that hold a session", access=Access())
live_nodes = _folder(
    "/live/nodes",
    "bootstrap",
    "nodes that hold a session",
    access=Access(create="node operator master", delete="operator master"),
)
live_node = _row(
    "/live/nodes/{node}",
    records.LiveNode,
    "node",
    "address, process, version, incarnation; with a certificate, the proof that it is the node's",
    size_bytes=16 * KIB,
    lifetime="ephemeral",
    access=Access(write="own-node"),
)
live_masters = _folder(
    "/live/masters",
    "bootstrap",
    "masters that hold a session",
    access=Access(create="master", delete="master", read=NOT_NODES),
)
live_master = _row(
    "/live/masters/{master}",
    records.LiveMaster,
    "master",
    "host, process, version, and its troubles",
    size_bytes=4 * KIB,
    lifetime="ephemeral",
    access=Access(write="master", read=NOT_NODES),
)
journals = _folder(
    "/journals",
    "bootstrap",
    "all journals that still hold or may get events",
    access=Access(create="node", delete="operator master"),
)
journal = _row(
    "/journals/{journal}",
    records.Journal,
    "primary, masters, operators",
    "flow, node, primary, term, in-sync replicas, closed and its end; nodes to hold replicas",
    size_bytes=16 * KIB,
    access=Access(
        write="own-node primary-node own-operator master",
        read=f"{AND_GATEWAYS} replica-node",
        admin="master",
    ),
)
queues = _folder(
    "/queues",
    "bootstrap",
    "work queues",
    access=Access(create="discovery", delete="operator master", read=NOT_NODES),
)
queue = _row(
    "/queues/{flow}",
    records.Queue,
    "discovery tasks",
    "head of one flow's work queue: its id, next item number of each lane, epoch",
    size_bytes=16 * KIB,
    access=Access(
        write="discovery",
        create="discovery collector",
        delete="discovery own-operator master",
        read=NOT_NODES,
    ),
)
queue_lanes = _folder(
    "/queues/{flow}/lanes",
    "discovery tasks",
    "the queue's lanes",
    access=Access(create="discovery", delete="discovery own-operator master", read=NOT_NODES),
)
queue_lane = _folder(
    "/queues/{flow}/lanes/{lane}",
    "discovery tasks",
    "one lane's segments, unwatched",
    access=Access(create="discovery", delete="discovery own-operator master", read=NOT_NODES),
)
queue_segment = _row(
    "/queues/{flow}/lanes/{lane}/{segment}",
    records.QueueSegment,
    "discovery tasks",
    "items of a lane, numbered; written with the head, removed when all are acked",
    size_bytes=50 * KIB,
    access=Access(write="discovery", read=NOT_NODES),
)
queue_failures = _folder(
    "/queues/{flow}/failed",
    "discovery tasks",
    "items that could not be read",
    access=Access(
        create="discovery collector",
        delete="discovery collector own-operator master",
        read=NOT_NODES,
    ),
)
queue_failure = _row(
    "/queues/{flow}/failed/{item}",
    records.QueueFailure,
    "owner of the lane",
    "`LANE.NUMBER`: a skipped item, the position reached and why; written with the ack that skips "
    "it, removed when it is retried or given up",
    size_bytes=16 * KIB,
    access=Access(write="discovery collector own-operator", read=NOT_NODES),
)
polls = _row(
    "/queues/{flow}/polls",
    records.Polls,
    "owner of the lane",
    "of a flow that polls: answers that are not in all sinks yet, and where to continue",
    size_bytes=128 * KIB,
    access=Access(write="collector", read=NOT_NODES),
)
queue_seen = _folder(
    "/queues/{flow}/seen",
    "discovery tasks",
    "items that were listed",
    access=Access(create="discovery", delete="discovery own-operator master", read=NOT_NODES),
)
queue_seen_bucket = _row(
    "/queues/{flow}/seen/{bucket}",
    records.QueueSeen,
    "discovery tasks",
    "a share of the listed items: hashes, or the name of their file; or a watermark",
    size_bytes=50 * KIB,
    access=Access(write="discovery", read=NOT_NODES),
)
all_intents = _folder(
    "/intents",
    "bootstrap",
    "decided batches of all flows, unwatched",
    access=Access(create="operator", delete="operator master", read=NOT_NODES),
)
intents = _folder(
    "/intents/{flow}",
    "operators",
    "the flow's decided batches",
    access=Access(
        create="collector master", delete="collector own-operator master", read=NOT_NODES
    ),
)
intent = _row(
    "/intents/{flow}/{task}",
    records.Intent,
    "owner of the task, masters",
    "the batch that the task has decided to write: number, ranges, revision",
    size_bytes=512 * KIB,
    access=Access(write="collector master own-operator", read=NOT_NODES),
)
push = _row(
    "/push",
    records.Push,
    "push tool",
    "the last push to this cluster, its inventory content, and the process that pushes now",
    size_bytes=512 * KIB,
    access=Access(write="operator", create="operator", delete="operator", read=NOT_NODES),
)
push_entry = _row(
    "/push/{entry}",
    records.PushEntry,
    "push tool",
    "one transaction of a push: its changes, and the values before; bounded",
    size_bytes=512 * KIB,
    access=Access(read=NOT_NODES),
)
audits = _folder(
    "/audit",
    "bootstrap",
    "audit of all changes, bounded",
    access=Access(create="any-operator viewer master discovery", delete="master", read=NOT_NODES),
)
audit = _row(
    "/audit/{entry}",
    records.Audit,
    "every operator command",
    "one operator command: author, command, reason, time",
    size_bytes=16 * KIB,
    access=Access(read=NOT_NODES),
)


def find(path: str, version: int = VERSION) -> Row[Record] | None:
    """Return the row of ``path``, or None when a tree of that version has none."""
    rows = (row for row in ROWS if row.since <= version)
    return next((row for row in rows if row.matches(path) is not None), None)


@cache
def may_have_children(row: Row[Record]) -> bool:
    return any(other.pattern.rpartition("/")[0] == row.pattern for other in ROWS)


def to_markdown() -> str:
    lines = [
        f"Schema version {VERSION}. Paths are relative to the cluster's chroot.",
        "",
        "| znode | record | lifetime | written by | at most | since | holds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        record = row.record.__name__ if row.record else "folder"
        size = f"{row.size_bytes // KIB} KiB" if row.size_bytes else "empty"
        lines.append(
            f"| `{row.pattern}` | {record} | {row.lifetime} | {row.writer} | {size} "
            f"| {row.since} | {row.doc} |"
        )
    lines += [
        "",
        "In a secured cluster each znode has an access list (see "
        "[security](../explanation/security.md)). An administrator may do everything. A node, "
        "an operator or a subscriber has these rights once it is admitted, most of them by a "
        "group whose secret is in its record in `/members`; `own-ROLE` is the member that the "
        "path names. `own-operator` is each operator of the flow in the path; for a cursor's "
        "znodes, of the flow that reads with it. `operator` is one admitted for all flows, "
        "`any-operator` also one admitted for some. `primary-node` leads the journal, and "
        "`replica-node` is to hold a replica of it: masters keep these lists up to date with "
        "the journals' records. `site-gateway` are gateways, for cursors "
        "`SITE:FLOW`. `most` are all but nodes and gateways.",
        "",
        "| znode | changed by | children made by | children removed by | read by |",
        "|---|---|---|---|---|",
    ]
    root = ("/", ROOT)
    for pattern, access in (root, *((row.pattern, row.access) for row in ROWS)):
        roles = (access.write, access.create, access.delete)
        shown = (" ".join(role.split()).replace(" ", ", ") or "-" for role in roles)
        readers = "all" if access.read == EVERYONE else "most"
        if "viewer" not in access.read:
            readers = access.read or "administrators"
        readers += ", own-node" if "own-node" in access.read and "{node}" in pattern else ""
        for holder in ("gateway", "primary-node", "replica-node"):
            readers += f", {holder}" if holder in access.read and readers != "all" else ""
        lines.append(f"| `{pattern}` | {' | '.join(shown)} | {readers} |")
    return "\n".join(lines) + "\n"
