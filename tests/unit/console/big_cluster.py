"""A large cluster in memory with a console on it, to test pages without servers."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.testclient import TestClient

from flumeng.console.app import make_app
from flumeng.console.asking import Asking
from flumeng.console.console import Console, Sites
from flumeng.console.who.viewers import Viewer
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_journal, add_node, new_cluster
from tests.testkit.command_line import NOON
from tests.testkit.store import FakeStore
from zkschema import bootstrap, codec, paths, records

OPERATOR = Viewer("alice", "operator")
TEXT = "flow: {}\nlabels: {{team: t{}}}\nsources: [generate: {{}}]\nsinks: [noop]\n"


def account(unacked: int = 0, **fields: Any) -> Account:
    """An account of a journal with events of 10 bytes in room for 100,000."""
    said: dict[str, Any] = {
        "term": 1,
        "durability": "group",
        "floor": 0,
        "acked": 0,
        "safe": unacked,
        "bytes": 10 * unacked,
        "max_bytes": 1_000_000,
        "lost": 0,
        "waits_at": None,
        "closed": False,
        "oldest_unacked_us": int((NOON - 60) * 1e6) if unacked else None,
        **fields,
    }
    return Account(**said)


@dataclass
class Cluster:
    """A console on a fake store. ``accounts``: what nodes answer, by address; others are silent."""

    store: FakeStore = field(default_factory=new_cluster)
    clock: Clock = field(default_factory=lambda: Clock(NOON))
    monotonic: Clock = field(default_factory=Clock)
    accounts: dict[str, Mapping[str, Account]] = field(default_factory=dict)
    viewer: Viewer = OPERATOR
    sites: Sites | None = None

    def __post_init__(self) -> None:
        self.store.tree.clock = self.clock
        asking = Asking(accounts=self._ask, counters=lambda _address: [])
        self.console = Console(
            self.store, asking=asking, clock=self.clock, monotonic=self.monotonic, sites=self.sites
        )
        app = make_app(self.console, lambda _request: self.viewer)
        self.client = TestClient(app, follow_redirects=False)

    def _ask(self, address: str) -> Mapping[str, Account]:
        if address not in self.accounts:
            raise UnavailableError(f"{address} does not answer")
        return self.accounts[address]

    def add_flow(self, name: str, number: int = 0, **flow: Any) -> None:
        revision = records.Revision(
            text=TEXT.format(name, number), author="a", reason="r", time=NOON
        )
        self.store.write(paths.flow(name), records.Flow(revision=1, **flow), ABSENT)
        for folder in bootstrap.flow_folders(name):
            self.store.write(folder, None, ABSENT)
        self.store.write(paths.revision(name, "1"), revision, ABSENT)

    def add_node(self, name: str, **node: Any) -> None:
        address = f"{name}:7000"
        add_node(self.store, name, addresses=(address,), since=NOON - 3600)
        record = records.Node(uuid=name, roles=("ingest", "collect"), **node)
        self.store.write(paths.node(name), record, ANY)
        status = records.NodeStatus(assignment_version=0)
        self.store.write(paths.status(name), status, ABSENT)
        self.accounts[address] = {}

    def add_journal(self, name: str, held: Account, **fields: Any) -> None:
        add_journal(self.store, name, **fields)
        address = f"{name.split('.')[1]}:7000"
        self.accounts[address] = {**self.accounts[address], name: held}

    def damage(self, *znodes: object) -> None:
        for path in znodes:
            self.store.tree.znodes[str(path)].data = b"{"
            self.store.tree.changed(str(path))

    def look(self) -> None:
        """Take a picture, and forget what viewers have shared."""
        self.monotonic.now += 10.0
        self.console.pictures.take()

    def page(self, url: str, status: int = 200) -> str:
        answer = self.client.get(url)
        assert answer.status_code == status, answer.text
        return answer.text


def text_of(page: str) -> str:
    """The text of a page's main part as a person reads it, on one line."""
    main = page[page.index("<main") : page.index("</main>")]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main)).split())


def first_cells(page: str) -> list[str]:
    """The heads of the rows of all tables, without further notes in them."""
    cells = re.findall(r'<th scope="row">(.*?)(?:<span|</th>)', page, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in cells]


def large(flows: int = 1000, nodes: int = 400, journals: int = 20_000) -> Cluster:
    cluster = Cluster()
    for number in range(flows):
        cluster.add_flow(f"f{number:04}", number % 7)
    for number in range(nodes):
        cluster.add_node(f"n{number:03}", zone=f"z{number % 4}", labels={"rack": f"r{number % 9}"})
    answers: dict[str, dict[str, Account]] = {}
    for number in range(journals):
        node = f"n{number % nodes:03}"
        flow = f"f{number % flows:04}"
        name = f"{flow}.{node}.0.{number:08x}"
        record = records.Journal(flow=flow, node=node, primary=node, term=1, in_sync=(node,))
        cluster.store.tree.put(str(paths.journal(name)), codec.encode(record))
        answers.setdefault(f"{node}:7000", {})[name] = account(number % 100)
    cluster.accounts.update(answers)
    cluster.look()
    return cluster


PAGES: Sequence[str] = (
    *("/flows", "/nodes", "/queues", "/journals", "/cursors"),
    *("/audit", "/settings", "/sites", "/search"),
)
