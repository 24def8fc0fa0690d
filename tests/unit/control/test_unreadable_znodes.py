"""One unreadable record harms the thing that it describes and nothing else: every kind in turn."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flumeng.control.commands import flows, settings
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.zookeeper import ABSENT, ANY, Path
from flumeng.platform.errors import FlumengError
from tests.testkit.cluster import add_journal, add_node, new_cluster, settle
from tests.testkit.command_line import Reached, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records, table
from zkschema.records import Record
from zkschema.table import Row

FLOW = """
flow: {name}
sources: [{{syslog: {{listen: "127.0.0.1:{port}"}}}}]
sinks: [{{console: {{}}}}]
place: {{collect: {{tasks: {tasks}}}}}
"""
MANY = 600
ADDRESS = "n1:7000"
DAMAGE = {
    "garbage": b"\xff\x00no record",
    "newer": b'{"v":99,"of":"tomorrow"}',
    "nested": b'{"v":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}
JOURNALS = [f"{flow}.{node}.0.aa" for flow in ("a", "b") for node in ("n1", "n2")]

NAMES = {
    "site": "fra",
    "flow": "a",
    "number": "1",
    "bucket": "7",
    "cursor": "main",
    "partition": "a.n1.0.aa",
    "commit": "collect.0@x",
    "node": "n1",
    "master": "m2",
    "journal": "a.n1.0.aa",
    "entry": "20260101T000000.000000-x",
    "item": "i",
    "shard": "0",
    "task": "collect.0",
    "lane": "0",
    "segment": "0",
    "page": "7",
    "member": "node:n1",
}
RECORDS = [row for row in table.ROWS if row.record is not None and row is not paths.schema]
COMMANDS = [
    ("status",),
    ("flow", "list"),
    ("top",),
    ("task", "list"),
    ("node", "list"),
    ("journal", "list"),
    ("ack", "list"),
    ("cluster", "audit"),
]

UNSEEN = [
    row
    for row in RECORDS
    if row
    in (
        *(paths.partitions_bucket, paths.commit, paths.contact, paths.story, paths.audit),
        paths.assignment_page,
    )
    or row.pattern.startswith(
        ("/queues", "/intents", "/push", "/tombstones", "/groups", "/members")
    )
]
"""``status`` does not read these; the commands that show them report the error."""


def path_of(row: Row[Record]) -> Path:
    names = [part.partition("}")[0] for part in row.pattern.split("{")[1:]]
    return row(*(NAMES[name] for name in names))


@dataclass
class Cluster:
    """Flows a and b run on two nodes, under two masters."""

    store: FakeStore
    masters: list[Master]

    def settle(self) -> None:
        settle(*self.masters)

    def apply(self, name: str, tasks: int = 1) -> None:
        text = FLOW.format(name=name, tasks=tasks, port=5000 + ord(name))
        flows.apply_flow(Operator(self.store, "a", "", 0.0), text)

    def say(self, node: str) -> None:
        """The node runs its assignment."""
        told = self.store.read(paths.assignment(node))
        assert told is not None
        tasks = {
            f"{task.flow}/{task.task}": records.TaskStatus(
                epoch=task.epoch, revision=task.revision, state="running"
            )
            for task in told.value.tasks
        }
        said = records.NodeStatus(assignment_version=told.version.number, tasks=tasks)
        self.store.write(paths.status(node), said, ANY)

    def damage(self, path: Path, data: bytes) -> None:
        znode = self.store.tree.znodes[str(path)]
        znode.data, znode.version = data, znode.version + 1
        self.store.tree.changed(str(path))

    def told(self, node: str) -> set[tuple[str, str, int, str]]:
        found = self.store.read(paths.assignment(node))
        tasks = found.value.tasks if found else ()
        return {(task.flow, task.task, task.epoch, task.state) for task in tasks}

    def planned(self, flow: str) -> dict[str, records.PlannedTask]:
        found = read_plan(self.store, flow)
        return dict(found.value.tasks) if found else {}


def cluster(tasks: int = 1) -> Cluster:
    store = new_cluster()
    for name in ("n1", "n2"):
        add_node(store, name, addresses=(f"{name}:7000",))
        store.write(paths.story(name), records.Story(), ABSENT)
    made = Cluster(store, [Master(FakeStore(store.tree), name) for name in ("m1", "m2")])
    made.apply("a", tasks)
    made.apply("b")
    store.write(paths.partitions("a"), records.Partitions(), ABSENT)
    for name in JOURNALS:
        flow, node, *_ = name.split(".")
        add_journal(store, name, flow=flow, node=node)
        store.write(paths.ack(flow, "main", name), records.Ack(epoch=1, offset=5), ABSENT)
    made.settle()
    for node in ("n1", "n2"):
        made.say(node)
    made.settle()
    return made


def with_znode(row: Row[Record]) -> tuple[Cluster, Path]:
    """A cluster with such a znode."""
    there = cluster(MANY if row in (paths.plan_bucket, paths.partitions_bucket) else 1)
    make(there.store, path_of(row))
    return there, path_of(row)


def make(store: FakeStore, path: Path) -> None:
    """Create a missing znode with its parents, if the other steps do not create it."""
    znodes = store.tree.znodes
    for end in [n for n, c in enumerate(str(path)) if c == "/" and n] + [len(str(path))]:
        if str(path)[:end] not in znodes:
            znodes[str(path)[:end]] = type(znodes["/"])(b"")


@pytest.mark.slow
@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("row", RECORDS, ids=lambda row: row.pattern)
def test_masters_plan_everything_that_is_readable(row: Row[Record], data: bytes) -> None:
    there, path = with_znode(row)
    before = {node: there.told(node) for node in ("n1", "n2")}
    plans = {flow: there.planned(flow) for flow in ("a", "b")}
    there.damage(path, data)
    for master in there.masters:
        master.tick()
    there.settle()
    there.apply("c")
    there.settle()
    assert there.store.tree.znodes[str(path)].data == data, "what cannot be read is evidence"
    there.masters.append(Master(FakeStore(there.store.tree), "m3"))  # it has no memory
    there.settle()
    held = {"ingest.n1", "ingest.n2", "collect.0"}
    if path in (paths.node("n1"), paths.assignment("n1")):
        held = {"ingest.n2", "collect.0"}  # the tasks and the assignment of that node are unknown
    assert there.planned("c").keys() == held
    for flow in "ab" if row not in (paths.plan, paths.plan_bucket) else "b":
        assert there.planned(flow) == plans[flow], "nothing of the others moves"
    for node in ("n1", "n2"):
        if path != paths.assignment(node):
            assert before[node] <= there.told(node), "and nobody is told to let go"


@pytest.mark.slow
@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("row", RECORDS, ids=lambda row: row.pattern)
def test_commands_show_everything_that_is_readable(row: Row[Record], data: bytes) -> None:
    there, path = with_znode(row)
    there.damage(path, data)
    for master in there.masters:
        master.tick()
    shell = Shell(there.store.tree)
    shell.positions[ADDRESS] = {"a.n1.0.aa": Reached(1, 9), "b.n1.0.aa": Reached(1, 9)}
    for command in COMMANDS:
        answer = shell.run(*command)
        assert answer.exit_code == 0 or command == ("status",), (command, answer.output)
        if command in (("flow", "list"), ("task", "list")):
            assert "\nb" in answer.stdout, "b is shown"
    if row not in UNSEEN:
        status = shell.json("status")
        assert status["health"] == "degraded"
        assert any(str(path) in cause["what"] for cause in status["causes"]), status["causes"]


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_masters_write_nothing_without_a_readable_schema(data: bytes) -> None:
    there = cluster()
    there.damage(paths.schema(), data)
    before = dict(there.store.dump())
    for master in there.masters:
        assert "/schema" in master.tick()
    after = dict(there.store.dump())
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert all(path.startswith("/live/masters/") for path in changed)
    with pytest.raises(FlumengError):
        there.apply("c")


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_commands_show_everything_without_a_readable_schema(data: bytes) -> None:
    there = cluster()
    there.damage(paths.schema(), data)
    shell = Shell(there.store.tree)
    for command in COMMANDS:
        assert shell.run(*command).exit_code in (0, 1), command
    assert "/schema" in shell.run("status").stdout


def test_chokes_stay_while_the_settings_of_the_cluster_are_unreadable() -> None:
    there = cluster()
    settings.set_choke(Operator(there.store, "a", "", 0.0), "a", 1e6, None)
    there.settle()
    there.damage(paths.cluster(), DAMAGE["garbage"])
    there.apply("c")
    there.settle()
    told = there.store.read(paths.assignment("n1"))
    assert told is not None
    assert told.value.chokes == {"a": 1e6}


@pytest.mark.parametrize(
    "path", [paths.journal("a.n1.0.aa"), paths.status("n1"), paths.ack("a", "main", "a.n1.0.aa")]
)
def test_deleted_flow_is_kept_while_its_completion_is_unknown(path: Path) -> None:
    there = cluster()
    for name in JOURNALS:
        if name.startswith("a."):
            _, node, *_ = name.split(".")
            journal = records.Journal(
                flow="a", node=node, primary=node, term=1, in_sync=(), closed=True, end=5
            )
            there.store.write(paths.journal(name), journal, ANY)
    flows.delete_flow(Operator(there.store, "a", "", 0.0), "a")
    there.damage(path, DAMAGE["garbage"])
    for _ in range(3):
        there.settle()
        for node in ("n1", "n2"):
            if path != paths.status(node):
                there.say(node)
    assert there.store.exists(paths.flow("a"))
    if path == paths.journal("a.n1.0.aa"):
        there.store.remove(path, ANY)
    elif path == paths.status("n1"):
        there.store.remove(path, ANY)
        there.say("n1")
    else:
        there.store.write(path, records.Ack(epoch=1, offset=5), ANY)
    for _ in range(3):
        there.settle()
        for node in ("n1", "n2"):
            there.say(node)
    assert not there.store.exists(paths.flow("a")), "the test sees what is dropped"


def test_discarded_flow_waits_for_a_node_with_an_unreadable_status() -> None:
    there = cluster()
    there.damage(paths.status("n1"), DAMAGE["newer"])
    flows.delete_flow(Operator(there.store, "a", "", 0.0), "a", discard=True)
    for _ in range(3):
        there.settle()
        there.say("n2")
    assert there.store.exists(paths.flow("a"))
    there.store.remove(paths.status("n1"), ANY)
    there.say("n1")
    there.settle()
    assert not there.store.exists(paths.flow("a"))
