"""Every command is a process, looks only, or leaves an entry in the audit: there is no fourth."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import pytest

from cli.main import tree as commands
from flumeng.control.commands import site_failover
from flumeng.control.commands.cluster import export_cluster
from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.nodes import set_node_desired
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.rollouts import change_rollout
from flumeng.control.commands.settings import begin_maintenance
from flumeng.control.commands.sites import add_site
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.certificates import Certificates
from tests.testkit.cluster import add_journal, add_node, come_live, new_cluster
from tests.testkit.command_line import Reached, Shell, leaves
from tests.testkit.store import FakeStore
from tests.unit.zkschema.made_up_version import make_up_next_version
from zkschema import paths, records

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
KAFKA = (
    'flow: orders\nsources: [kafka: {brokers: ["127.0.0.1:9092"], topics: [orders]}]\n'
    "sinks: [noop]\n"
)
PARTITION = "orders.0.MkTRfQ2n@kafka"
SIGN = ("a", "", 0.0)
PROCESSES = {"standalone", "zookeeper", "master", "node:run", "shell"}
READS = {
    "site:list",
    "site:show",
    "flow:validate", "flow:list", "flow:show", "flow:history", "flow:diff", "flow:wait",
    "flow:counters", "flow:dead:list", "flow:dead:show", "flow:explain", "flow:graph", "flow:lag",
    "flow:rollout:status", "node:list", "node:show", "node:story", "task:list",
    "task:show", "task:wait", "ack:list", "ack:commits", "ack:intents",
    "cursor:list", "cursor:show", "queue:list", "queue:show",
    "cluster:show", "cluster:audit", "schema:show", "schema:export",
    "status", "top",
}  # fmt: skip
LOCAL = {
    "console:token",
    "components",
    "flow:try", "flow:test", "import:flume-ng", "import:flume-og",
    "cluster:secure:init", "cluster:secure:issue", "cluster:secure:show",
    "cluster:secure:signing-key", "node:enroll",
}  # fmt: skip
"""Commands on files of this host, without a cluster."""
PUSH_READS = {
    "push:plan", "push:render", "push:status", "push:drift", "push:history", "push:export",
}  # fmt: skip
"""``test_cli_push`` shows that these change nothing, and which records pushes write."""
PUSHES = {"push:apply", "push:rollback"}
TAPS = {"flow:tap"}
"""Tapping changes nothing; tests of real taps show that the audit records the user."""
SITES = 'inventory: test\nsites: {here: {zookeeper: "zk:1/c"}}\n'


def nothing(_store: FakeStore) -> None:
    """Leave the fixture's cluster unchanged."""


def die(store: FakeStore) -> None:
    store.remove(paths.live_node("n1"), ANY)


def drained(store: FakeStore) -> None:
    die(store)
    for path in (paths.plan("web"), paths.journal("web.n1.0.aa")):
        store.remove(path, ANY)


def text_of(store: FakeStore) -> None:
    apply_flow(Operator(store, *SIGN), FLOW + "# 2\n")


def rolling(store: FakeStore) -> None:
    """Revision 2 is rolled out; all tasks have run revision 1."""
    apply_flow(Operator(store, *SIGN), FLOW + "rollout: {canary: 1}\n")
    plan = store.read(paths.plan("web"))
    assert plan is not None
    store.write(paths.plan("web"), replace(plan.value, revision=1), plan.version)


def paused(store: FakeStore) -> None:
    rolling(store)
    change_rollout(Operator(store, *SIGN), "web", "pause")


def resting(store: FakeStore) -> None:
    """The flow is paused, and its tasks are released."""
    set_flow_state(Operator(store, *SIGN), "web", "suspended")
    store.write(paths.plan("web"), records.Plan(epoch=1), ANY)


def of_kafka(store: FakeStore) -> None:
    """A flow orders, whose discovery task runs on n1."""
    apply_flow(Operator(store, *SIGN), KAFKA)
    live = store.read(paths.live_node("n1"))
    assert live is not None
    store.write(paths.live_node("n1"), replace(live.value, discovery="n1:2"), ANY)
    task = records.PlannedTask(kind="discover", node="n1", epoch=1, state="assigned")
    store.write(paths.plan("orders"), records.Plan(tasks={"discover.0": task}), ABSENT)
    found = records.Partitions(partitions={PARTITION: records.Partition()})
    store.write(paths.partitions("orders"), found, ABSENT)


def replicated(store: FakeStore) -> None:
    """The journal of web has a copy on n2 that is in sync; n3 may hold one."""
    for name in ("n2", "n3"):
        there = store.exists(paths.node(name))
        roles = ("ingest", "replica")
        store.write(
            paths.node(name), records.Node(uuid=name, roles=roles), ANY if there else ABSENT
        )
        if not store.exists(paths.live_node(name)):
            come_live(store, name)
    path = paths.journal("web.n1.0.aa")
    found = store.read(path)
    assert found is not None
    journal = replace(
        found.value, primary="n1", in_sync=("n1/a", "n2/b"), replicas=("n1", "n2"), lineage="l"
    )
    store.write(path, journal, found.version)


def apply_dying(store: FakeStore, folder: Path) -> None:
    """Apply a flow ``dying`` with one dead letter."""
    letter = {"body": "x", "dead_reason": "why", "dead_place": "sinks[0].http",
              "dead_revision": 1, "dead_time": "2026-11-22T12:00:00Z"}  # fmt: skip
    folder.mkdir()
    (folder / f"part-{'0' * 32}.json").write_text(json.dumps(letter) + "\n")
    sinks = f"dead_letters: {{files: {{path: {folder}, format: json, shared: true}}}}\n"
    apply_flow(Operator(store, *SIGN), FLOW.replace("flow: web", "flow: dying") + sinks)


def nobody_live(store: FakeStore) -> None:
    for path in [path for path in store.dump() if path.startswith("/live/")]:
        if path.count("/") > 2:
            del store.tree.znodes[path]


def orphan(store: FakeStore) -> None:
    store.write(paths.acks("gone"), None, ABSENT)


def stuck(store: FakeStore) -> None:
    lost = records.Commit(epoch=1, staging=(), files=(("/not/staged", "/not/there"),))
    store.write(paths.commit("web", "collect.0@u"), lost, ABSENT)


def knowing_a_site(store: FakeStore) -> None:
    add_site(Operator(store, *SIGN), "fra", ["g1:9003"], "")


def failed_over(store: FakeStore) -> None:
    knowing_a_site(store)
    plan = site_failover.plan(store, "fra", "failover", 0.0)
    site_failover.carry_out(Operator(store, *SIGN), plan)


def read_by_a_notebook(store: FakeStore) -> None:
    lease = records.Lease(holder="u", reader="r", keep_seconds=60.0, renewed=0.0)
    store.write(paths.cursor("web", "report"), None, ABSENT)
    store.write(paths.lease("web", "report"), lease, ABSENT)


def with_a_gap(store: FakeStore) -> None:
    broke = records.Break(id="b", reader="r", why="w", time=0.0, events=1)
    store.write(paths.breaks("web"), records.Breaks(cursors={"nyc:copy": broke}), ABSENT)


def with_a_bad_object(store: FakeStore) -> None:
    store.write(paths.queue("web"), records.Queue(epoch=1, id="5f2a90c1", next={"0": 9}), ABSENT)
    store.write(paths.queue_failures("web"), None, ABSENT)
    failure = records.QueueFailure(
        location="/in/bad", size=9, modified=0, position=3, why="bits", time=0.0
    )
    store.write(paths.queue_failure("web", "0.7"), failure, ABSENT)


def of_the_version_before(store: FakeStore) -> None:
    for path in (paths.intents("web"), paths.intents("dying"), paths.all_intents()):
        store.remove(path, ANY)
    for name in ("n1", "n2"):
        store.remove(paths.live_node(name), ANY)


@dataclass(frozen=True)
class Change:
    """``words`` are the arguments of the command; ``{dir}`` in them is a directory with its
    files."""

    words: str
    prepare: Callable[[FakeStore], object] = field(default=nothing)


CHANGES = {
    "flow:apply": Change("{dir}/web.yaml"),
    "flow:rollback": Change("web 1", text_of),
    "flow:pause": Change("web"),
    "flow:resume": Change("web", lambda s: set_flow_state(Operator(s, *SIGN), "web", "stopped")),
    "flow:stop": Change("web"),
    "flow:choke": Change("web 10MB"),
    "flow:handoff": Change("web"),
    "flow:backfill": Change("orders --from earliest --to latest", of_kafka),
    "flow:dead:replay": Change("dying"),
    "flow:dead:purge": Change("dying --yes"),
    "flow:reset": Change("web --to latest --yes", resting),
    "flow:delete": Change("web"),
    "flow:rollout:pause": Change("web", rolling),
    "flow:rollout:resume": Change("web", paused),
    "flow:rollout:promote": Change("web", rolling),
    "flow:rollout:abort": Change("web", rolling),
    "node:drain": Change("n1"),
    "node:undrain": Change("n1", lambda s: set_node_desired(Operator(s, *SIGN), "n1", "draining")),
    "node:decommission": Change("n1", drained),
    "node:decommission --discard": Change("n1 --yes", die),
    "node:label": Change("n1 role=web"),
    "node:capacity": Change("n1 slots=4"),
    "task:restart": Change("web/collect.0"),
    "task:move": Change("web/collect.0 n2"),
    "ack:advance": Change("web.n1.0.aa"),
    "cursor:end": Change("web report", read_by_a_notebook),
    "cursor:delete": Change("web report", read_by_a_notebook),
    "cursor:acknowledge": Change("web nyc:copy", with_a_gap),
    "queue:retry": Change("web --all", with_a_bad_object),
    "queue:skip": Change("web 0.7", with_a_bad_object),
    "ack:drop": Change("web collect.0@u --yes", stuck),
    "journal:promote": Change("web.n1.0.aa --to n2", replicated),
    "journal:move": Change("web.n1.0.aa --from n2 --to n3", replicated),
    "journal:add-replica": Change("web.n1.0.aa n3", replicated),
    "journal:drop-replica": Change("web.n1.0.aa n2 --yes", replicated),
    "site:name": Change("nyc"),
    "site:add": Change("fra g1:9003"),
    "site:failover": Change("fra --yes", knowing_a_site),
    "site:failback": Change("fra --yes", failed_over),
    "site:remove": Change("fra", knowing_a_site),
    "cluster:set": Change("grace_seconds 5"),
    "cluster:maintenance on": Change(""),
    "cluster:maintenance off": Change("", lambda s: begin_maintenance(Operator(s, "a", "r", 0.0))),
    "schema:init": Change("", lambda s: s.tree.znodes.pop("/queues")),
    "schema:verify --fix": Change("--yes", orphan),
    "schema:secure": Change("--member node:n1", nobody_live),
    "schema:migrate --finish": Change("--yes", of_the_version_before),
    "push:adopt": Change("here --inventory {dir}/inventory"),
    "schema:import": Change("{dir}/all.json", lambda s: [s.tree.znodes.pop(p) for p in s.dump()]),
}
"""Command, with a further word for a variant -> a change that has an effect."""
RENAMED = {"cursor:delete": "cursor:end"}
"""Old names, whose audit entries have the new ones."""


@pytest.fixture
def store(tmp_path: Path) -> FakeStore:
    """Flow web with its collect task on n1, and flow dying; n2 is free."""
    store = new_cluster()
    apply_flow(Operator(store, *SIGN), FLOW)
    apply_dying(store, tmp_path / "dead")
    for name in ("n1", "n2"):
        add_node(store, name, ("collect",), addresses=(f"{name}:1",))
    task = records.PlannedTask(kind="collect", node="n1", epoch=1, state="assigned")
    store.write(paths.plan("web"), records.Plan(epoch=1, tasks={"collect.0": task}), ABSENT)
    add_journal(store, "web.n1.0.aa")
    return store


def test_every_command_is_classified() -> None:
    """The other commands of ``journal`` look at nodes and at files on this host."""
    known = (
        PROCESSES
        | READS
        | LOCAL
        | PUSH_READS
        | PUSHES
        | TAPS
        | {name.split(" ")[0] for name in CHANGES}
    )
    named = {
        name for name, _ in leaves(commands) if name in known or not name.startswith("journal:")
    }
    assert named - {"schema:verify"} == known - {"schema:verify"}


def test_every_change_takes_a_reason() -> None:
    changing = PUSHES | TAPS | {name.split(" ")[0] for name in CHANGES} - {"schema:init"}
    for name, command in leaves(commands):
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--reason" in options) == (name in changing), name


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_every_change_leaves_one_audit_entry(
    store: FakeStore, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "schema:secure":
        monkeypatch.setenv(DIRECTORY, str(Certificates(tmp_path).folder("admin")))
    (tmp_path / "web.yaml").write_text(FLOW + "# new\n")
    (tmp_path / "all.json").write_text(json.dumps(export_cluster(store)))
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "sites.yaml").write_text(SITES)
    CHANGES[name].prepare(store)
    if name == "schema:migrate --finish":
        make_up_next_version(monkeypatch)
    before = set(store.children(paths.audits()))
    words = [*name.replace(":", " ").split(), *CHANGES[name].words.format(dir=tmp_path).split()]
    reason = ["--reason", "why"] if name != "schema:init" else []
    shell = Shell(store.tree, {"n1:1": {"web.n1.0.aa": Reached(5, 9)}})
    shell.kept[PARTITION] = {"earliest": 0, "latest": 9}
    done = shell.run(*words, *reason)
    assert done.exit_code == 0, done.stderr
    (entry,) = set(store.children(paths.audits())) - before - imported(tmp_path, name)
    found = store.read(paths.audit(entry))
    assert found is not None
    entry_name = RENAMED.get(name, name)
    assert found.value.command.startswith(" ".join(entry_name.replace(":", " ").split()[:2]))
    assert found.value.who == "ann@ops"
    assert found.value.reason.endswith("why" if reason else "")


def imported(folder: Path, name: str) -> set[str]:
    """The entries that an import adds."""
    if name != "schema:import":
        return set()
    znodes = json.loads((folder / "all.json").read_text())["znodes"]
    return {path.rpartition("/")[2] for path in znodes if path.startswith("/audit/")}


@pytest.mark.parametrize("name", ["flow:apply", "node:drain", "task:restart", "task:move"])
def test_dry_run_leaves_no_audit_entry(store: FakeStore, name: str, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(FLOW + "# new\n")
    before = store.dump()
    words = [*name.replace(":", " ").split(), *CHANGES[name].words.format(dir=tmp_path).split()]
    assert Shell(store.tree).run(*words, "--dry-run").exit_code == 0
    assert store.dump() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(READS - {"top", "flow:wait", "task:wait"}))
def test_reading_command_changes_nothing(store: FakeStore, name: str) -> None:
    with_a_bad_object(store)
    before = store.dump()
    names = {"flow": "web", "queue": "web", "node": "n1", "task": "web/collect.0", "site": "fra"}
    names["cursor"] = "web"
    command = dict(leaves(commands))[name]
    arguments = [p for p in command.params if isinstance(p, click.Argument) and p.required]
    words = [names[name.split(":", maxsplit=1)[0]]] if arguments and name != "flow:validate" else []
    Shell(store.tree).run(*name.split(":"), *words)
    assert store.dump() == before
