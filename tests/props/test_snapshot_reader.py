"""A reader that follows watch events sees the same as one that reads everything."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.reader import WATCHED, Reader
from flumeng.control.snapshot.task_map import BUCKETS, INLINE_TASKS, Tasks, plan_writes, read_plan
from flumeng.control.zookeeper import ABSENT, ANY, Path, tree
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Plan, PlannedTask, Record

FLOWS = st.sampled_from(["a", "b"])
NODES = st.sampled_from(["n1", "n2", "n3"])
PARTITION = "p0@broker"
SIGN = ("t", "", 0.0)
TEXT = "flow: {}\nsources: [syslog: {{listen: '{}'}}]\nsinks: [noop]\n"


class Following(RuleBasedStateMachine):
    """One reader hears of each change; at every step a fresh one must see the same."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tree = FakeTree()
        self.store = FakeStore(self.tree)
        self.reading = FakeStore(self.tree)

    @initialize()
    def start(self) -> None:
        tree.init(self.store)
        self.reader = Reader(self.reading, "m", self.clock, lambda: 0.0)
        for top in WATCHED:
            self.reading.watch(top, self.reader.on_watch)

    def clock(self) -> float:
        return self.now

    def put(self, path: Path, value: Record | None) -> None:
        self.store.write(path, value, ANY if self.store.exists(path) else ABSENT)

    @rule(flow=FLOWS, port=st.integers(1000, 1003))
    def apply(self, flow: str, port: int) -> None:
        apply_flow(Operator(self.store, *SIGN), TEXT.format(flow, f"0.0.0.0:{port}"))

    @rule(flow=FLOWS, state=st.sampled_from(["running", "suspended", "stopped"]))
    def want(self, flow: str, state: str) -> None:
        if self.store.exists(paths.flow(flow)):
            set_flow_state(Operator(self.store, *SIGN), flow, state)

    @rule(flow=FLOWS)
    def break_revision(self, flow: str) -> None:
        found = self.store.read(paths.flow(flow))
        if found:
            self.put(paths.flow(flow), replace(found.value, revision=found.value.revision + 50))

    @rule(flow=FLOWS, many=st.booleans(), epoch=st.integers(1, 5), draining=st.booleans())
    def plan(self, flow: str, epoch: int, *, many: bool, draining: bool) -> None:
        if not self.store.exists(paths.flow(flow)):
            return
        found = read_plan(self.store, flow)
        before = Tasks.of(found.value.tasks) if found else Tasks()
        state = "draining" if draining else "assigned"
        task = PlannedTask(kind="collect", node="n1", epoch=epoch, state=state)
        count = INLINE_TASKS + 5 if many else 2
        after = before.changed({f"collect.{n}": task for n in range(count)})
        plan = Plan(epoch=epoch, tasks=after)
        expect = found.version if found else ABSENT
        self.store.commit(plan_writes(flow, plan, before, expect))
        assert len(after.buckets) in (1, BUCKETS)

    @rule(node=NODES, zone=st.sampled_from("ab"))
    def register(self, node: str, zone: str) -> None:
        self.put(paths.node(node), records.Node(uuid=node, roles=("collect",), zone=zone))

    @rule(node=NODES)
    def live(self, node: str) -> None:
        record = records.LiveNode(
            uuid=node, incarnation="i", addresses=(), pid=1, version="", since=0.0
        )
        self.put(paths.live_node(node), record)

    @rule(node=NODES)
    def die(self, node: str) -> None:
        if self.store.exists(paths.live_node(node)):
            self.store.remove(paths.live_node(node), ANY)

    @rule(node=NODES, version=st.integers(0, 3))
    def report(self, node: str, version: int) -> None:
        if self.store.exists(paths.node(node)):
            self.put(paths.status(node), records.NodeStatus(assignment_version=version))
            self.put(paths.assignment(node), records.Assignment(chokes={"a": 1.0 + version}))

    @rule(flow=FLOWS, number=st.integers(0, 2), closed=st.booleans())
    def journal(self, flow: str, number: int, *, closed: bool) -> None:
        if not self.store.exists(paths.flow(flow)):
            return
        record = records.Journal(
            flow=flow, node="n1", primary="n1", term=1, in_sync=("n1",), closed=closed, end=5
        )
        self.put(paths.journal(f"{flow}.n1.{number}"), record)

    @rule(flow=FLOWS, weight=st.sampled_from([1.0, 2.0]), end=st.sampled_from([None, 3]))
    def discover(self, flow: str, weight: float, end: int | None) -> None:
        if self.store.exists(paths.flow(flow)):
            known = {PARTITION: records.Partition(weight={"slots": weight}, end=end)}
            self.put(paths.partitions(flow), records.Partitions(partitions=known))

    @rule(flow=FLOWS)
    def ack_more(self, flow: str) -> None:
        if self.store.exists(paths.flow(flow)):
            path = paths.ack(flow, CURSOR_MAIN, PARTITION)
            acked = self.store.read(path)
            offset = acked.value.offset + 2 if acked else 0
            self.put(path, records.Ack(epoch=0, offset=offset))

    @rule(grace=st.sampled_from([0.0, 5.0]))
    def set_cluster(self, grace: float) -> None:
        self.put(paths.cluster(), records.Cluster(grace_seconds=grace))

    @rule(master=st.sampled_from(["m", "other"]))
    def master_lives(self, master: str) -> None:
        live = records.LiveMaster(host="h", pid=1, version="", since=0.0)
        self.put(paths.live_master(master), live)

    @rule(node=NODES)
    def miss_a_change(self, node: str) -> None:
        """A change while the connection is down sends no event."""
        self.reading.cut()
        self.register(node, "c")
        self.reading.heal()

    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def both_see_the_same(self) -> None:
        if not hasattr(self, "reader"):
            return
        fresh = Reader(self.store, "m", self.clock, lambda: 0.0).snapshot()
        seen = self.reader.snapshot()
        assert {n: replace(v, down=False) for n, v in seen.nodes.items()} == {
            n: replace(v, down=False) for n, v in fresh.nodes.items()
        }
        assert list(seen.nodes) == list(fresh.nodes)
        for name, view in seen.nodes.items():
            for path, value in (
                (paths.status(name), view.status),
                (paths.assignment(name), view.assignment if view.assignment.chokes else None),
            ):
                found = self.store.read(path)
                assert value == (found.value if found else None), path
        for name, flow in seen.flows.items():
            partitions = self.store.read(paths.partitions(name))
            known = partitions.value.partitions if partitions else {}
            assert flow.weights == {key: one.weight for key, one in known.items()}
            assert flow.partitions == known
        assert seen.flows == fresh.flows
        assert (seen.journals, seen.drained) == (fresh.journals, fresh.drained)
        assert (seen.mine, seen.leads, seen.cluster) == (fresh.mine, fresh.leads, fresh.cluster)


Following.TestCase.settings = settings(stateful_step_count=25, deadline=None)
test_a_reader_that_follows_sees_everything = Following.TestCase
