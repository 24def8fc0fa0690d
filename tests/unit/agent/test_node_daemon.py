"""The node's loop, over children that are only scripted."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from flumeng.agent.node.claim import SupplantedError
from flumeng.agent.node.daemon import LOOK_SECONDS, TICK_SECONDS, Node
from flumeng.agent.node.data_directory import DataDirectory
from flumeng.agent.node.events import Assigned, Ended, Reported, Tick
from flumeng.agent.node.process import ChildProcess
from flumeng.agent.node.protocol import Message
from flumeng.agent.node.settings import Settings
from flumeng.config import policy
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, tree
from flumeng.platform.errors import ForbiddenError
from tests.testkit.clock import Clock
from tests.testkit.cluster import new_cluster
from tests.testkit.light_nodes import ScriptedChild
from tests.testkit.scripted_store import concerns, fail, nothing
from tests.testkit.simulation.stepped_node import SteppedNode
from tests.testkit.store import FakeStore, Znodes
from tests.unit.agent.node_bench import Bench, task
from zkschema import paths
from zkschema.records import INGEST, Ack, AssignedTask, Assignment

FLOW = "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}"
TASK = AssignedTask(flow="web", task="ingest.n1", kind=INGEST, epoch=1, revision=1, state="running")


def test_full_disk_does_not_stop_a_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its journals must be served all the more, so that they are collected and trimmed."""
    clock = Clock()
    store, home = FakeStore(), DataDirectory(tmp_path)
    tree.init(store)
    apply_flow(Operator(store, "a", "", 0.0), FLOW)

    def start(child: str) -> ScriptedChild:
        return ScriptedChild(child, "n1", node.hear)

    settings = Settings("n1", tmp_path, "", roles=(INGEST,))
    node = SteppedNode(settings, home, store, clock, start)
    node.turn()
    store.write(paths.assignment("n1"), Assignment(), ABSENT)
    node.turn()
    assert home.kept() is not None
    unwritable = tmp_path / "assignment.tmp"
    unwritable.mkdir()
    store.write(paths.assignment("n1"), Assignment(tasks=(TASK,)), ANY)
    node.turn()
    node.turn()
    status = store.read(paths.status("n1"))
    assert status is not None
    assert (status.value.assignment_version, list(status.value.tasks)) == (1, ["web/ingest.n1"])
    assert "cannot save the assignment" in caplog.text
    unwritable.rmdir()
    clock.now += LOOK_SECONDS
    node.turn()
    kept = home.kept()
    assert kept is not None
    assert kept.assignment.tasks == (TASK,)


def test_policy_file_that_cannot_be_used_is_a_problem_in_status(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "node.yaml"
    store, home = new_cluster(), DataDirectory(tmp_path / "data")
    file.write_text("subscribers: {nyc: [web]}")

    def start(child: str) -> ScriptedChild:
        return ScriptedChild(child, "n1", node.hear)

    settings = Settings("n1", tmp_path, "", roles=(INGEST,), policy=file)
    node = SteppedNode(settings, home, store, clock, start, allowed=policy.load(file))

    def problem() -> str:
        clock.now += LOOK_SECONDS
        node.turn()
        found = store.read(paths.status("n1"))
        assert found is not None
        return found.value.problems.get("policy file", "")

    node.turn()
    assert problem() == ""
    file.write_text("subscribers: {nyc: web}")
    assert "expected a list" in problem()
    file.write_text("subscribers: {}")
    assert problem() == ""


@pytest.mark.parametrize("lost", [False, True], ids=["the flow", "the cluster"])
def test_journals_are_removed_with_their_flow_but_not_with_their_cluster(
    tmp_path: Path, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A ZooKeeper that was wiped and recreated knows no flow either."""
    caplog.set_level("INFO")
    clock, told = Clock(), []
    store = new_cluster()
    apply_flow(Operator(store, "a", "", 0.0), FLOW)

    class Child:
        def tell(self, message: Message) -> None:
            told.append(message)
            journal = {"flow": "web", "term": 1, "closed": True, "end": 5}
            if message["type"] == "configure":
                status = {"answers": message["number"], "tasks": {}, "kept_flows": ["web"]}
                journals = {"web.n1.0.1": journal}
                node.hear(Reported("ingest.0", {"type": "status", "journals": journals, **status}))

        def kill(self) -> None: ...

    def start(child: str) -> Child:
        node.hear(Reported(child, {"type": "ready", "address": "n1:1"}))
        return Child()

    def turns() -> None:
        for _ in range(5):
            clock.now += LOOK_SECONDS
            node.turn()

    settings = Settings("n1", tmp_path, "", roles=(INGEST,))
    node = SteppedNode(settings, DataDirectory(tmp_path), store, clock, start)
    node.turn()
    store.write(paths.assignment("n1"), Assignment(tasks=(TASK,)), ABSENT)
    turns()
    assert store.read(paths.journal("web.n1.0.1")) is not None
    assert not [message for message in told if message["type"] == "remove"]
    if lost:
        store.tree.znodes = Znodes()
        tree.init(store)
    else:
        for path in [path for path in store.tree.znodes if path.startswith("/flows/web")]:
            del store.tree.znodes[path]
    turns()
    removals = [message for message in told if message["type"] == "remove"]
    assert bool(removals) is not lost
    assert ("another cluster" in caplog.text) is lost


def test_chatty_children_do_not_keep_others_from_being_started(tmp_path: Path) -> None:
    """With forty workers there is always one that says that it is alive."""
    clock, started = Clock(), []
    store = new_cluster()

    class Child(ScriptedChild):
        def kill(self) -> None:
            killed.append(self._name)

    def start(child: str) -> ScriptedChild:
        started.append(child)
        return Child(child, "n1", node.hear)

    def chatter(seconds: float) -> None:
        for _ in range(round(20 * seconds)):
            clock.now += 0.05
            node.hear(Reported("ingest.0", {"type": "alive"}))
            node.hear(Reported("ingest.1", {"type": "alive"}))
            node.turn()

    killed: list[str] = []
    settings = Settings("n1", tmp_path, "", roles=(INGEST,), workers=3)
    node = SteppedNode(settings, DataDirectory(tmp_path), store, clock, start)
    node.turn()
    node.hear(Ended("ingest.2", 1))
    chatter(1.0)
    assert started[3:] == ["ingest.2"]
    chatter(settings.limits.silent_seconds + 1.0)
    assert set(killed) == {"ingest.2"}


NO_ROOM = [
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.EAGAIN, "Resource temporarily unavailable"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("can't start new thread"),
]


@pytest.mark.parametrize("error", NO_ROOM, ids=repr)
def test_child_that_failed_to_start_is_started_later(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [error, error]

    class NumberedChild(ScriptedChild):
        pid = 1

    class FullNode(Node):
        def _spawn(self, child: str, _command: list[str]) -> ChildProcess:
            if failures:
                raise failures.pop()
            return NumberedChild(child, "n1", self.hear)  # type: ignore[return-value]

    store = new_cluster()
    ticks = count(100.0, 0.01)
    node = FullNode(
        Settings("n1", tmp_path, "", roles=(INGEST,)),
        DataDirectory(tmp_path),
        store,
        lambda: next(ticks),
    )
    for _ in range(200):
        node.hear(Tick())
        node.turn()
    assert failures == []
    assert node.health.unready == []
    assert f"ingest.0 cannot be started, retrying: {error}" in caplog.text


def live_in_another_boot(tmp_path: Path) -> Bench:
    """A node whose host went down; its session is not over."""
    bench = Bench(tmp_path)
    bench.turns()
    found = bench.store.read(paths.live_node("n1"))
    assert found is not None
    bench.store.write(paths.live_node("n1"), replace(found.value, boot="before"), ANY)
    bench.home.close()
    return bench


def test_holder_of_the_name_is_waited_for_only_while_zookeeper_is_connected(tmp_path: Path) -> None:
    """Sessions do not end while no ZooKeeper is there."""
    again = Bench(tmp_path, live_in_another_boot(tmp_path).store.tree)
    again.turns(5.0)
    again.store.cut()
    again.turns(60.0)
    again.store.heal()
    again.turns(29.0)
    with pytest.raises(SupplantedError, match="another host or container"):
        again.turns(3.0)


@pytest.mark.slow
def test_node_that_waits_for_the_holder_of_its_name_is_healthy(tmp_path: Path) -> None:
    bench = live_in_another_boot(tmp_path)
    seconds = count(100.0)
    settings = Settings("n1", tmp_path, "", roles=(INGEST,), session_seconds=60.0)
    store = FakeStore(bench.store.tree)
    node = Node(settings, DataDirectory(tmp_path), store, lambda: next(seconds))
    with pytest.raises(SupplantedError):
        node.run()
    assert node.health.stuck is None


def test_a_node_that_is_stopped_before_it_may_start_starts_nothing(tmp_path: Path) -> None:
    started = []

    class RecordingNode(Node):
        def _start(self, child: str) -> None:
            started.append(child)

    home = DataDirectory(tmp_path)
    home.keep(Assigned(1, Assignment(tasks=(TASK,)), {("web", 1): FLOW}))
    store = FakeStore()
    store.cut()
    node = RecordingNode(Settings("n1", tmp_path, "", roles=(INGEST,)), home, store)
    node.stop()
    node.run()
    assert started == []


def test_child_that_cannot_be_killed_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be held in the kernel for ever, by a disk that does not answer."""
    clock = Clock()

    class Child(ScriptedChild):
        def kill(self) -> None: ...

    def start(child: str) -> ScriptedChild:
        return Child(child, "n1", node.hear)

    def silence(seconds: float) -> int:
        caplog.clear()
        for _ in range(round(2 * seconds)):
            clock.now += 0.5
            node.turn()
        return caplog.text.count("ingest.0 is killed: hung")

    store = new_cluster()
    settings = Settings("n1", tmp_path, "", roles=(INGEST,))
    node = SteppedNode(settings, DataDirectory(tmp_path), store, clock, start)
    assert silence(60.0) == 1
    node.hear(Ended("ingest.0", -9))
    assert silence(60.0) == 1


def test_acks_are_read_often_while_they_are_awaited_and_only_then(tmp_path: Path) -> None:
    """Those of the flow's own cursor, all with one request; a reader's ack says nothing."""
    bench = Bench(tmp_path)
    bench.apply("web")
    bench.assign(task("web"))
    bench.turns()
    journal = "web.n1.0.light"

    def delivered(seconds: float) -> list[object]:
        bench.told.clear()
        bench.store.reads.clear()
        for _ in range(round(seconds / 0.01)):
            bench.now += 0.01
            bench.node.hear(Reported("ingest.0", {"type": "alive"}))
            bench.node.turn()
        return [message["acks"] for message in bench.told if message["type"] == "delivered"]

    bench.store.write(paths.ack("web", "main", journal), Ack(epoch=1, offset=5), ABSENT)
    assert delivered(1.0) == []
    seldom = bench.records_read
    bench.node.hear(Reported("ingest.0", {"type": "awaits", "journals": [journal, "other.n9.0.x"]}))
    assert delivered(1.0) == [{journal: 5}]
    assert 8 <= bench.records_read <= 12 + seldom
    bench.store.write(paths.cursor("web", "reader"), None, ABSENT)
    bench.store.write(paths.ack("web", "reader", journal), Ack(epoch=1, offset=9), ABSENT)
    assert delivered(1.0) == []
    bench.store.write(paths.ack("web", "main", journal), Ack(epoch=1, offset=7), ANY)
    assert delivered(0.2) == [{journal: 7}]
    bench.node.hear(Reported("ingest.0", {"type": "awaits", "journals": []}))
    bench.store.write(paths.ack("web", "main", journal), Ack(epoch=1, offset=8), ANY)
    assert delivered(1.0) == []
    assert bench.records_read <= seldom + 4


def test_deliveries_are_sent_soon_after_a_slow_request(tmp_path: Path) -> None:
    """As after a ZooKeeper that stood still and goes on."""
    bench = Bench(tmp_path)
    bench.apply("web")
    bench.assign(task("web"))
    bench.turns()
    journal = "web.n1.0.light"

    def stand_still(_request: object) -> None:
        bench.now += 5.0

    bench.store.before_read = stand_still
    bench.node.hear(Reported("ingest.0", {"type": "awaits", "journals": [journal]}))
    bench.node.turn()
    bench.store.before_read = nothing
    bench.store.write(paths.ack("web", "main", journal), Ack(epoch=1, offset=5), ABSENT)
    bench.told.clear()
    bench.turns(1.0)
    assert {"type": "delivered", "acks": {journal: 5}} in bench.told


def test_refused_write_is_not_reported_as_waiting_for_zookeeper(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench = Bench(tmp_path)
    bench.store.before_commit = fail(ForbiddenError("the ACL is old"), concerns(paths.story))
    bench.apply("web")
    bench.assign(task("web"))
    bench.turns()
    assert "cannot write the event log: the ACL is old" in caplog.messages
    assert not any("waiting" in message for message in caplog.messages)


@pytest.mark.slow
def test_awaited_deliveries_cause_no_busy_loop_while_zookeeper_is_away(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.apply("web")
    bench.assign(task("web"))
    bench.turns()
    bench.node.hear(Reported("ingest.0", {"type": "awaits", "journals": ["web.n1.0.light"]}))
    bench.turns(1.0)
    bench.store.cut()
    bench.now += 1.0
    began = time.monotonic()
    for _ in range(3):
        assert Node._next_event(bench.node) == Tick()
    assert time.monotonic() - began > 2 * TICK_SECONDS
