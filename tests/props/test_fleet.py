"""Two weeks of a fleet in simulated time: hosts come and go by the hundred, flows are made and
deleted, a rack fails, records are damaged, masters die. The masters are the real ones, the nodes
are their znodes only.

After each step everything that is not damaged must be planned, and at the end nothing may be left
of removed flows and nodes: neither in ZooKeeper nor in the memory of a master.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from flumeng.control.commands import flows, nodes
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.zookeeper import ABSENT, ANY, Unreadable
from tests.testkit.cluster import new_cluster
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths, records, table
from zkschema.bootstrap import CURSOR_MAIN

SEEDS = int(os.environ.get("FLUMENG_FLEET_SEEDS", "1"))
DAYS = int(os.environ.get("FLUMENG_FLEET_DAYS", "14"))
DAY = 86_400.0
STEP_SECONDS = 3600.0
NOON = 1_800_000_000.0
LEAST_NODES, MOST_NODES = 15, 40
MOST_FLOWS = 6
FORGET_SECONDS = 2 * DAY
DAMAGEABLE = (
    paths.flow,
    paths.revision,
    paths.plan,
    paths.node,
    paths.status,
    paths.assignment,
    paths.journal,
    paths.ack,
    paths.live_node,
    paths.live_master,
)
FLOW = """
flow: {name}
sources: [{{syslog: {{listen: "127.0.0.1:{port}"}}}}]
place: {{ingest: {{labels: {{pool: "{pool}"}}}}, collect: {{tasks: {tasks}, spread: zone}}}}
sinks: [{{console: {{}}}}]
"""


@dataclass
class Host:
    """``returns``: when it starts again after it died; never when that is None."""

    name: str
    store: FakeStore
    draining: bool = False
    returns: float | None = None
    died: float = 0.0


@dataclass
class Damage:
    data: bytes
    version: int
    until: float


@dataclass
class Fleet:
    """One cluster. ``now`` are simulated seconds since it began."""

    random: Random
    tree: FakeTree = field(default_factory=FakeTree)
    now: float = 0.0
    joined: int = 0
    made: int = 0
    live: dict[str, Host] = field(default_factory=dict)
    dead: dict[str, Host] = field(default_factory=dict)
    masters: dict[str, Master] = field(default_factory=dict)
    damaged: dict[str, Damage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operator = new_cluster(self.tree)
        found = self.operator.read(paths.cluster())
        assert found is not None
        settings = replace(found.value, forget_after_seconds=FORGET_SECONDS)
        self.operator.write(paths.cluster(), settings, found.version)
        for number in range(3):
            self._start_master(f"m{number}")
        for _ in range(LEAST_NODES):
            self.join()

    def wall(self) -> float:
        return NOON + self.now

    # Events

    def join(self) -> None:
        self.joined += 1
        name = f"n{self.joined}"
        store = FakeStore(self.tree)
        node = records.Node(
            uuid=name,
            roles=("ingest", "collect"),
            zone="abc"[self.joined % 3],
            labels={"pool": "xy"[self.joined % 2]},
            capacity={"slots": 100.0},
        )
        store.write(paths.node(name), node, ABSENT)
        store.write(paths.story(name), records.Story(), ABSENT)
        self.live[name] = Host(name, store)
        self._announce(self.live[name])

    def signed(self) -> Operator:
        return Operator(self.operator, "ann", "", self.wall())

    def drain(self, host: Host) -> None:
        host.draining = True
        self._command(lambda: nodes.set_node_desired(self.signed(), host.name, "draining"))

    def die(self, host: Host, returns: float | None) -> None:
        del self.live[host.name]
        host.store.expire()
        host.died, host.returns = self.now, returns
        self.dead[host.name] = host

    def come_back(self) -> None:
        """Nodes that were away start again; those that never return are given up after a day."""
        for host in list(self.dead.values()):
            if host.returns is not None and host.returns <= self.now:
                del self.dead[host.name]
                self.live[host.name] = host
                self._announce(host)
            elif host.returns is None and not host.draining and self.now - host.died > DAY:
                self._discard(host)

    def _discard(self, host: Host) -> None:
        if self._command(lambda: nodes.discard_node(self.signed(), host.name)):
            del self.dead[host.name]

    def make_flow(self) -> None:
        self.made += 1
        text = FLOW.format(
            name=f"f{self.made}",
            port=1000 + self.made,
            pool=self.random.choice("xy"),
            tasks=self.random.randint(1, 12),
        )
        flows.apply_flow(self.signed(), text)

    def delete_flow(self, name: str) -> None:
        self._command(lambda: flows.delete_flow(self.signed(), name))

    def damage(self) -> None:
        """Damage a record for some hours; then it is restored, if it has not changed."""
        kinds = [
            path
            for path in self.tree.znodes
            if path not in self.damaged and table.find(path) in DAMAGEABLE
        ]
        path = self.random.choice(kinds)
        znode = self.tree.znodes[path]
        hours = 3600 * self.random.randint(1, 8)
        self.damaged[path] = Damage(znode.data, znode.version + 1, self.now + hours)
        znode.data = self.random.choice((b"\xff\x00", b'{"v":99}', b""))
        znode.version += 1
        self.tree.changed(path)

    def restore(self, *, everything: bool = False) -> None:
        for path, damage in list(self.damaged.items()):
            if everything or damage.until <= self.now:
                del self.damaged[path]
                znode = self.tree.znodes.get(path)
                if znode is not None and znode.version == damage.version:
                    znode.data, znode.version = damage.data, znode.version + 1
                    self.tree.changed(path)

    def happen(self) -> None:
        """Simulate an hour of a fleet that follows its load, with a bad day now and then."""
        random = self.random
        self.now += STEP_SECONDS
        self.come_back()
        self.restore()
        hosts = [host for host in self.live.values() if not host.draining]
        for _ in range(random.choice((0, 1, 1, 2))):
            if len(self.live) < MOST_NODES:
                self.join()
        for host in random.sample(hosts, random.choice((0, 1, 1, 1))):
            if len(hosts) > LEAST_NODES:
                self.drain(host)
        if random.random() < 0.2 and len(hosts) > LEAST_NODES:
            back = self.now + 3600 * random.randint(0, 12) if random.random() < 0.6 else None
            self.die(random.choice(list(self.live.values())), back)
        if random.random() < 0.01:
            there = sorted(self.live)
            for name in random.sample(there, len(there) * 2 // 3):
                self.die(self.live[name], self.now + 3600)
        names = self.operator.children(paths.flows())
        if len(names) < MOST_FLOWS and random.random() < 0.3:
            self.make_flow()
        elif names and random.random() < 0.15:
            self.delete_flow(random.choice(names))
        if random.random() < 0.3:
            self.damage()
        if random.random() < 0.1:
            self._restart_master(random.choice(list(self.masters)))

    # Reactions

    def settle(self) -> None:
        """Masters and nodes react to each other until none has anything to do."""
        quiet = 0
        for _ in range(60):
            before = {path: znode.version for path, znode in self.tree.znodes.items()}
            for master in self.masters.values():
                master.tick()
            for host in list(self.live.values()):
                self._turn(host)
            self.now += 2.0
            after = {path: znode.version for path, znode in self.tree.znodes.items()}
            quiet = quiet + 1 if before == after else 0
            if quiet == 2:
                return
        changing = {path for path in after if after[path] != before.get(path)}
        pytest.fail(f"no rest after {self.now / DAY:.1f} days: {sorted(changing)[:9]}")

    def _turn(self, host: Host) -> None:
        """The node runs its assignment; its journals are collected at once."""
        try:
            told = read_assignment(host.store, host.name)
        except Exception:  # a damaged assignment: the node continues with its present tasks
            return
        tasks = told.value.tasks if told else ()
        self._keep_journals(host, {task.flow for task in tasks if task.kind == records.INGEST})
        runs = {
            f"{task.flow}/{task.task}": records.TaskStatus(
                epoch=task.epoch, revision=task.revision, state="running"
            )
            for task in tasks
            if task.state != "draining"
        }
        number = told.version.number if told else 0
        status = records.NodeStatus(assignment_version=number, tasks=runs)
        (found,) = host.store.read_each([paths.status(host.name)])
        if found is None or isinstance(found, Unreadable) or found.value != status:
            host.store.write(paths.status(host.name), status, ANY)
        self.damaged.pop(str(paths.status(host.name)), None)
        mine = f".{host.name}."
        if (
            host.draining
            and not tasks
            and not any(mine in name for name in host.store.children(paths.journals()))
        ):
            self.die(host, None)

    def _keep_journals(self, host: Host, wanted: set[str]) -> None:
        """Keep one journal for each flow that is received here; others are closed, collected and
        removed."""
        mine = f".{host.name}."
        listed = [name for name in host.store.children(paths.journals()) if mine in name]
        have = {name.partition(".")[0] for name in listed}
        for flow in wanted - have:
            journal = records.Journal(
                flow=flow, node=host.name, primary=host.name, term=1, in_sync=(host.name,)
            )
            name = f"{flow}{mine}0.{len(self.tree.znodes):08x}"
            host.store.write(paths.journal(name), journal, ABSENT)
        for name in listed:
            path = paths.journal(name)
            flow = name.partition(".")[0]
            if flow not in wanted and str(path) not in self.damaged:
                ack = paths.ack(flow, CURSOR_MAIN, name)
                host.store.write(path, replace(self._journal(name), closed=True, end=0), ANY)
                for gone in (ack, path):
                    if host.store.exists(gone):
                        host.store.remove(gone, ANY)

    def _journal(self, name: str) -> records.Journal:
        found = self.operator.read(paths.journal(name))
        assert found is not None
        return found.value

    def _announce(self, host: Host) -> None:
        live = records.LiveNode(
            uuid=host.name, incarnation="i", addresses=("h:1",), pid=1, version="0", since=0.0
        )
        path = paths.live_node(host.name)
        if not host.store.exists(path):
            host.store.write(path, live, ABSENT)

    def _start_master(self, name: str) -> None:
        store = FakeStore(self.tree)
        self.masters[name] = Master(store, name, lambda: self.now, self.wall)

    def _restart_master(self, name: str) -> None:
        self.masters.pop(name)._store.close()
        self._start_master(name)

    def _command(self, run: Callable[[], object]) -> bool:
        """Run an operator's command; on damaged or changing records it is tried again another
        day."""
        try:
            run()
        except Exception as error:
            if isinstance(error, AssertionError | TypeError):
                raise
            return False
        return True

    # Invariants

    def check(self) -> None:
        """Every intact flow runs where it should, also when other records are damaged."""
        maintenance = self._maintenance()
        for name in self.operator.children(paths.flows()):
            if self._is_whole(name):
                self._check_flow(name, maintenance=maintenance)

    def _check_flow(self, name: str, *, maintenance: bool) -> None:
        flow, plan = self.operator.read(paths.flow(name)), read_plan(self.operator, name)
        assert flow is not None
        if flow.value.state == "deleted":
            return
        assert plan is not None, f"{name} is not planned after {self.now / DAY:.1f} days"
        collect = [t for t in plan.value.tasks.values() if t.kind == records.COLLECT]
        assert collect
        for task in collect:
            assert task.node is not None or maintenance, f"nobody runs a task of {name}"
            assert maintenance or task.node in self.live or self._is_odd(task.node), (
                f"a task of {name} is on {task.node}, which is gone"
            )
        receives = {t.node for t in plan.value.tasks.values() if t.kind == records.INGEST}
        spec = self.operator.read(paths.revision(name, str(flow.value.revision)))
        assert spec is not None
        pool = spec.value.text.partition('pool: "')[2][0]
        for host in self.live.values():
            number = int(host.name[1:])
            if "xy"[number % 2] == pool and not host.draining and not self._is_odd(host.name):
                assert host.name in receives, f"{name} does not receive on {host.name}"

    def _is_whole(self, flow: str) -> bool:
        about = (f"/flows/{flow}/", f"/acks/{flow}/", f"/journals/{flow}.")
        own = f"/flows/{flow}"
        return not any(path == own or path.startswith(about) for path in self.damaged)

    def _is_odd(self, node: str | None) -> bool:
        """Whether some record of the node is damaged: then its tasks stay where they are."""
        return any(f"/{node}" in path for path in self.damaged)

    def _maintenance(self) -> bool:
        (found,) = self.operator.read_each([paths.cluster()])
        return isinstance(found, Unreadable) or bool(found and found.value.maintenance)


def reachable(top: object, but: object) -> int:
    """The number of objects that a master holds, less those shared with the cluster."""
    seen = {id(but)}
    waiting = [top]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | FakeStore | FakeTree | Fleet):
            continue
        seen.add(id(one))
        waiting.extend(gc.get_referents(one))
    return len(seen)


def days(fleet: Fleet, until: float) -> Iterator[None]:
    while fleet.now < until * DAY:
        fleet.happen()
        fleet.settle()
        fleet.check()
        yield


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_weeks_of_a_fleet_leave_nothing_unplanned_and_nothing_behind(seed: int) -> None:
    fleet = Fleet(Random(seed))
    for _ in days(fleet, DAYS):
        pass
    assert fleet.joined > 21 * DAYS
    fleet.restore(everything=True)
    for host in fleet.dead.values():
        host.returns = host.returns or (None if host.draining else fleet.now)
    names = fleet.operator.children(paths.flows())
    known = fleet.operator.read_many([paths.flow(name) for name in names])
    states = {name: found.value.state for name, found in zip(names, known, strict=True) if found}
    staying = [name for name, state in states.items() if state != "deleted"]
    for name in staying[1:]:
        fleet.delete_flow(name)
    if not staying:
        fleet.make_flow()
    for _ in range(5):
        fleet.now += FORGET_SECONDS
        fleet.come_back()
        fleet.settle()
    (flow,) = fleet.operator.children(paths.flows())
    assert set(fleet.operator.children(paths.nodes())) == set(fleet.live)
    for folder in (paths.all_acks, paths.all_commits):
        assert set(fleet.operator.children(folder())) <= {flow}
    assert {n.partition(".")[0] for n in fleet.operator.children(paths.journals())} <= {flow}
    young = Master(FakeStore(fleet.tree), "young", lambda: fleet.now, fleet.wall)
    young.tick()
    for master in fleet.masters.values():
        assert reachable(master, fleet) < 1.5 * reachable(young, fleet)
