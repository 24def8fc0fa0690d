"""A cluster with one flow in trouble, and its console over a store in memory."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.testclient import TestClient

from flumeng.connectors.dead_letters.console import ConsoleConnectors
from flumeng.console.app import make_app
from flumeng.console.asking import Asking
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import apply_flow, keep_tap
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Path
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_journal, add_node, new_cluster
from tests.testkit.store import FakeStore, _Znode
from zkschema import paths, records
from zkschema.records import NodeStatus, PlannedTask, Story, StoryLine, TaskStatus

NOON = 1_700_000_000.0
ADDRESS, COLLECTOR = "n1:7000", "n1:7001"
ANN = Viewer("ann", "admin", csrf="proof")
EVE = Viewer("eve", "viewer")
FLOW = """\
flow: web
sources: [tail: {paths: [/a]}]
filters:
  - parse: {format: syslog}
branches:
  - {name: errors, when: "severity < 4", sinks: [files: {path: /e, format: json}]}
  - name: rest
    otherwise: true
    sinks: [elasticsearch: {hosts: ["http://es:9200"], index: web}]
dead_letters: {files: {path: /dead, format: json}}
"""


def damage(store: FakeStore, path: Path) -> None:
    """Replace a record by bytes that are none."""
    znode: _Znode = store.tree.znodes[str(path)]
    znode.data, znode.version = b"\xff{", znode.version + 1
    store.tree.changed(str(path))


def account(acked: int, safe: int) -> Account:
    return Account(
        term=1, durability="disk", floor=0, acked=acked, safe=safe, bytes=1, max_bytes=1 << 30,
        lost=0, waits_at=None, closed=False, oldest_unacked_us=int((NOON - 60) * 1e6),
        acked_minute_ago=acked - 60, safe_minute_ago=safe - 120,
    )  # fmt: skip


@dataclass
class FakeTrials:
    """Answers as a trial would. ``events`` and ``traces`` are what it gives; ``error`` is raised;
    ``hang`` is called before each event of a tap."""

    events: Sequence[Mapping[str, Any] | None] = ()
    traces: Sequence[Mapping[str, Any]] = ()
    error: Exception | None = None
    tapped: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    explained: list[tuple[str, Sequence[Mapping[str, Any]]]] = field(default_factory=list)
    hang: Any = None

    def tap(
        self,
        operator: Operator,
        flow: str,
        *,
        at: str | None,
        where: str | None,
        seconds: float,
        most: int,
    ) -> Iterator[Mapping[str, Any] | None]:
        assert seconds <= 60
        assert most <= 200
        if self.error:
            raise self.error
        keep_tap(operator, flow, at=at, where=where)
        self.tapped.append((flow, at, where))
        for event in self.events:
            if self.hang:
                self.hang()
            yield event

    def explain(
        self, text: str, events: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        if self.error:
            raise self.error
        self.explained.append((text, events))
        return self.traces


@dataclass
class FakeLetters(ConsoleConnectors):
    """Dead letters of any flow; ``error`` is raised instead."""

    counted: Mapping[str, Any] = field(default_factory=dict)
    texts: Sequence[str] = ()
    error: Exception | None = None
    reads: int = 0

    def kinds(self, _store: Any, _flow: str) -> Mapping[str, Any]:
        self.reads += 1
        if self.error:
            raise self.error
        return self.counted

    def newest(self, _store: Any, _flow: str, _most: int, _reason: str) -> Sequence[str]:
        return self.texts


class Cluster:
    """The flow ``web``, by default of FLOW, with a task on the node n1 that retries. ``accounts``:
    the node's answers; None: it is silent."""

    def __init__(self, text: str = FLOW, name: str = "web", why: str = "") -> None:
        self.store = new_cluster()
        self.clock = Clock(NOON)
        self.name = name
        self.accounts: dict[str, Account] | None = {}
        self.counted: list[dict[str, Any]] = []
        apply_flow(Operator(self.store, "ann", "the first", NOON - 1000), text)
        add_node(self.store, "n1", addresses=(ADDRESS,), collector=COLLECTOR)
        why = why or "elasticsearch: Connection refused"
        self.report("retrying", why)
        line = StoryLine(
            time=NOON - 300,
            who=f"{name}/collect.0",
            event="status",
            before="running",
            after="retrying",
            cause=why,
        )
        self.store.write(paths.story("n1"), Story(lines=(line,)), ABSENT)
        self.add_partition(f"{name}.n1.0.aa", 300, 1000)
        self.trials = FakeTrials()
        self.letters = FakeLetters()
        self.console = Console(
            self.store,
            asking=Asking(accounts=self._accounts, counters=self._counters),
            clock=self.clock,
            monotonic=self.clock,
            trials=self.trials,
            connectors=self.letters,
        )

    def _accounts(self, _address: str) -> Mapping[str, Account]:
        if self.accounts is None:
            raise UnavailableError("no answer")
        return self.accounts

    def _counters(self, address: str) -> Sequence[Mapping[str, Any]]:
        if self.accounts is None:
            raise UnavailableError("no answer")
        return self.counted if address == COLLECTOR else []

    def report(self, state: str, why: str | None = None) -> None:
        path = paths.plan(self.name)
        task = PlannedTask(
            kind="collect",
            node="n1",
            epoch=1,
            state="assigned",
            partitions=(f"{self.name}.n1.0.aa",),
        )
        plan = records.Plan(revision=1, tasks={"collect.0": task})
        self.store.write(path, plan, ANY if self.store.exists(path) else ABSENT)
        status = TaskStatus(epoch=1, revision=1, state=state, error=why)
        told = NodeStatus(assignment_version=0, tasks={f"{self.name}/collect.0": status})
        path_of_status = paths.status("n1")
        there = self.store.exists(path_of_status)
        self.store.write(path_of_status, told, ANY if there else ABSENT)

    def add_partition(self, name: str, acked: int, safe: int) -> None:
        assert self.accounts is not None
        add_journal(self.store, name, flow=self.name, node="n1", in_sync=())
        ack = records.Ack(epoch=1, offset=acked)
        self.store.write(paths.ack(self.name, "main", name), ack, ABSENT)
        self.accounts[name] = account(acked, safe)

    def client(self, viewer: Viewer = ANN) -> TestClient:
        self.console.pictures.take()
        app = make_app(self.console, lambda _request: viewer)
        return TestClient(app, follow_redirects=False)

    def page(self, path: str, viewer: Viewer = ANN, status: int = 200) -> str:
        answer = self.client(viewer).get(path)
        assert answer.status_code == status, answer.text
        return answer.text


def text_of(page: str) -> str:
    """Return the visible text of a page, with one space between words."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
