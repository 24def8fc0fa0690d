"""A small cluster with something of everything: also of what is damaged, gone, failed and behind.

Flow ``web`` reads a file on n1, is behind, has dead letters, a reader at another site, an
unfinished commit and a decided batch. Flow ``objects`` reads a work queue with a failed item. Flow
``copy`` reads another site. Flow ``gone`` is deleted. The plan of flow ``hurt`` is damaged. Node n2
is gone, n3 is drained.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from flumeng.connectors.api.dead_letter_columns import ADDED
from flumeng.connectors.api.finding import Before, FindingTask
from flumeng.connectors.dead_letters.console import ConsoleConnectors
from flumeng.connectors.files import formats
from flumeng.connectors.objects.finder import ObjectsFinder
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.console.asking import Asking
from flumeng.console.console import Console
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.nodes import set_node_desired
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import ABSENT
from flumeng.events.schema import READ_SCHEMA
from tests.testkit.cluster import add_journal, add_node, new_cluster
from tests.testkit.command_line import NOON, Reached, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

J, LOST = "web.n1.0.aa", "web.n2.0.bb"
WEB = """flow: web
labels: {{team: shop}}
sources: [tail: {{paths: [/a]}}]
sinks: [noop]
lag: {{seconds: {lag}}}
dead_letters: {{files: {{path: "{root}/dead/dt=%Y-%m-%d", format: parquet}}}}
"""
OBJECTS = 'flow: objects\nsources: [objects: {{paths: ["{root}/in/*"]}}]\nsinks: [noop]\n'
COPY = "flow: copy\nsources: [flow: {site: fra, name: web}]\nsinks: [noop]\n"
HURT = "flow: hurt\nsources: [tail: {paths: [/b]}]\nsinks: [noop]\n"
LETTERS = pa.schema([*READ_SCHEMA, *ADDED])


@dataclass(frozen=True)
class FilledCluster:
    """``shell``: a command line on it. ``console``: with a first picture."""

    store: FakeStore
    shell: Shell
    console: Console


def filled_cluster(root: Path) -> FilledCluster:
    """Fill a new cluster; its files are below ``root``."""
    store = new_cluster()
    store.tree.clock = lambda: NOON - 300
    shell = Shell(store.tree, positions={"n1:7000": {J: Reached(10, 100)}})
    operator = Operator(store, "ann@ops", "why <b>not</b>", NOON)
    _flows(operator, root, shell)
    _nodes(store, operator)
    _work(store)
    _unfinished(store, root)
    _letters(root)
    asking = Asking(
        acks=shell.ask,
        accounts=shell.accounts,
        replicas=shell.replicas,
        counters=shell.counters,
        offsets=shell.offsets,
        targets=lambda *_given: [],
    )
    console = Console(
        store,
        asking=asking,
        clock=lambda: NOON,
        monotonic=lambda: shell.seconds,
        connectors=ConsoleConnectors(),
    )
    console.pictures.take()
    return FilledCluster(store, shell, console)


def _flows(operator: Operator, root: Path, shell: Shell) -> None:
    (root / "in").mkdir()
    for name in "abcdef":
        (root / "in" / name).write_text("x" * 1000)
    name_cluster(operator, "nyc")
    add_site(operator, "fra", ["g1:9003"], "")
    for text in (WEB.format(lag=1, root=root), OBJECTS.format(root=root), COPY, HURT):
        apply_flow(operator, text)
    apply_flow(operator, WEB.format(lag=30, root=root))
    tombstone = records.Tombstone(
        who="bob",
        reason="done",
        time=NOON,
        revisions=(records.PastRevision(number=1, author="ann", reason="", time=NOON),),
        text=HURT,
    )
    operator.store.write(paths.tombstone("gone"), tombstone, ABSENT)
    shell.run("flow", "choke", "web", "10MB")


def _nodes(store: FakeStore, operator: Operator) -> None:
    task = records.PlannedTask
    plans = {
        "web": {
            "ingest-n1": task(kind="ingest", node="n1", epoch=1, state="assigned"),
            "collect.0": task(
                kind="collect", node="n1", epoch=3, state="assigned", partitions=(J,)
            ),
            "collect.1": task(kind="collect", node="n2", epoch=3, state="assigned"),
        },
        "objects": {"discover": task(kind="discover", node="n1", epoch=1, state="assigned")},
    }
    ended = records.EndedTask(
        task="collect.2", node="n2", epoch=1, how="failed", why="no room", time=NOON
    )
    for flow, tasks in plans.items():
        store.write(paths.plan(flow), records.Plan(tasks=tasks, ended=(ended,)), ABSENT)
    running = {
        f"{flow}/{name}": records.TaskStatus(epoch=each.epoch, revision=2, state="running")
        for flow, tasks in plans.items()
        for name, each in tasks.items()
        if each.node == "n1"
    }
    add_node(store, "n1", addresses=("n1:7000",), collector="n1:7001")
    store.write(paths.assignment("n1"), records.Assignment(), ABSENT)
    status = records.NodeStatus(assignment_version=0, tasks=running, problems={"disk": "slow"})
    store.write(paths.status("n1"), status, ABSENT)
    line = records.StoryLine(time=NOON, who="web/collect.0", event="started", before="", after="x")
    store.write(paths.story("n1"), records.Story(lines=(line,)), ABSENT)
    gone = records.Node(uuid="n2", roles=("ingest",), labels={"rack": "b"}, zone="z2")
    store.write(paths.node("n2"), gone, ABSENT)
    add_node(store, "n3")
    set_node_desired(operator, "n3", "draining")
    master = records.LiveMaster(host="h", pid=1, version="0.1.0", since=NOON)
    store.write(paths.live_master("m1"), master, ABSENT)
    for name in (J, LOST):
        add_journal(store, name)


def _work(store: FakeStore) -> None:
    store.write(paths.ack("web", "main", J), records.Ack(epoch=3, offset=40), ABSENT)
    store.write(paths.cursor("web", "lon:copy"), None, ABSENT)
    store.write(paths.ack("web", "lon:copy", J), records.Ack(epoch=0, offset=20), ABSENT)
    lease = records.Lease(holder="h", reader="flow copy of lon", keep_seconds=1000.0, renewed=NOON)
    store.write(paths.lease("web", "lon:copy"), lease, ABSENT)
    gap = records.Gap(journal=J, start=1, end=5)
    broke = records.Break(id="b", reader="flow copy", why="room", time=NOON, events=4, gaps=(gap,))
    store.write(paths.breaks("web"), records.Breaks(cursors={"lon:copy": broke}), ABSENT)
    link = records.Link(
        site="fra", source="web", keep_seconds=100.0, renewed=NOON - 10, down_since=NOON - 60,
        why="refused", broke=broke,
    )  # fmt: skip
    store.write(paths.link("copy"), link, ABSENT)


def _unfinished(store: FakeStore, root: Path) -> None:
    source = ObjectsSource(paths=(f"{root}/in/*",), settle_seconds=0.0, lanes=2)
    ObjectsFinder(source, store, FindingTask("objects", 1)).find(Before())
    head = queues.head(store, "objects")
    assert head is not None
    lane = ack_path("objects", queues.lane_partition("1", head.value.id))
    store.write(lane, records.Ack(epoch=1, offset=items.offset_of(1)), ABSENT)
    failure = records.QueueFailure(
        location="/in/bad", size=7, modified=5, position=3, why="bits", time=1.0
    )
    store.write(paths.queue_failure("objects", "1.0"), failure, ABSENT)
    files = ((str(root / "staged"), str(root / "final")),)
    commit = records.Commit(epoch=3, staging=(str(root),), files=files)
    store.write(paths.commit("web", "collect.0@u1"), commit, ABSENT)
    intent = records.Intent(
        epoch=3, series="s", number=7, revision=2, splits=1, ranges={J: (40, 90)}
    )
    store.write(paths.intent("web", "collect.0"), intent, ABSENT)
    store.write(paths.plan("hurt"), records.Plan(), ABSENT)
    store.tree.znodes[str(paths.plan("hurt"))].data = b"{damaged"


def _letters(root: Path) -> None:
    noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    rows = [
        {
            "body": b"x\xff" if seq else b"{",
            "ts": noon,
            "host": "h",
            "attrs": [("source", "tail")],
            "journal": J,
            "seq": seq,
            "replayed": False,
            "dead_reason": "json: malformed <script>",
            "dead_place": "filters[0].parse",
            "dead_revision": 1,
            "dead_time": noon,
        }
        for seq in range(3)
    ]
    directory = root / "dead" / "dt=2026-11-22"
    directory.mkdir(parents=True)
    path = directory / f"part-{'0' * 32}{formats.ending('parquet', 'zstd')}"
    writer = formats.create(pa.OSFile(str(path), "wb"), LETTERS, "parquet", "zstd")
    writer.write(pa.Table.from_pylist(rows, LETTERS))
    writer.close()
