"""A cluster with flow web, and each action as a request, for tests of changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.testclient import TestClient

from flumeng.console.app import make_app
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands import lease_breaks
from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.history import audit
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.cluster import come_live, new_cluster
from tests.testkit.command_line import NOON
from tests.testkit.store import FakeStore
from tests.unit.control.obedient_nodes import settle
from zkschema import paths, records

FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
place: {collect: {tasks: 2, labels: {role: spark}}}
sinks: [noop]
"""
ROLLING = FLOW + "rollout: {canary: 1}\n"
ANN = Viewer("ann@example.com", "operator")
SIGN = ("bob", "", NOON)


def web_at_rest() -> FakeStore:
    """Flow web at rest on two of three nodes."""
    store = new_cluster()
    for name in ("n1", "n2", "n3"):
        node = records.Node(uuid=name, roles=("ingest", "collect"), labels={"role": "spark"})
        store.write(paths.node(name), node, ABSENT)
        come_live(store, name)
    apply_flow(Operator(store, *SIGN), FLOW)
    settle(store)
    return store


def client_of(store: FakeStore, viewer: Viewer = ANN, now: float = NOON) -> TestClient:
    """A browser of the viewer, at a console of its own."""
    console = Console(store, hosts="zk1:2181/flumeng", clock=lambda: now)
    return TestClient(make_app(console, lambda _request: viewer), raise_server_exceptions=True)


def post(
    client: TestClient, path: str, body: Mapping[str, Any] | None = None, **headers: str
) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(f"/api/v1{path}", json={**(body or {})}, headers=named)


def revision_of(store: FakeStore) -> int:
    found = store.read(paths.flow("web"))
    return found.value.revision if found else 0


def state_of(store: FakeStore) -> str:
    found = store.read(paths.flow("web"))
    return found.value.state if found else ""


def entries(store: FakeStore) -> list[tuple[str, str, str]]:
    """The audit, without what bob did to prepare a test."""
    rows = [(row.who, row.command, row.reason) for row in audit(store, 500)]
    return [row for row in rows if row[0] != "bob"]


def two_revisions(store: FakeStore) -> None:
    apply_flow(Operator(store, *SIGN), FLOW.replace("tasks: 2", "tasks: 1"))


def rolling(store: FakeStore) -> None:
    apply_flow(Operator(store, *SIGN), ROLLING)
    settle(store)
    apply_flow(Operator(store, *SIGN), ROLLING.replace("noop", "console"))


def paused(store: FakeStore) -> None:
    set_flow_state(Operator(store, *SIGN), "web", "suspended")
    settle(store)


def stopped_node(store: FakeStore) -> None:
    store.write(paths.node("n4"), records.Node(uuid="n4", roles=("collect",)), ABSENT)


def drained(store: FakeStore) -> None:
    node = store.read(paths.node("n3"))
    assert node is not None
    store.write(
        paths.node("n3"), records.Node(uuid="n3", roles=("collect",), desired="draining"), ANY
    )


def failed_item(store: FakeStore) -> None:
    failure = records.QueueFailure(
        location="s3://b/a", size=1, modified=0, position=0, why="bad", time=NOON
    )
    for folder in (paths.queue("web"), paths.queue_failures("web")):
        store.write(folder, records.Queue(id="q", epoch=1) if folder.row.record else None, ABSENT)
    store.write(paths.queue_failure("web", "item-1"), failure, ABSENT)


def leased(store: FakeStore) -> None:
    store.write(paths.cursor("web", "job"), None, ABSENT)
    lease = records.Lease(holder="h", reader="spark", keep_seconds=60.0, renewed=NOON)
    store.write(paths.lease("web", "job"), lease, ABSENT)


def broken(store: FakeStore) -> None:
    lease = records.Lease(holder="h", reader="s", keep_seconds=60.0, renewed=NOON)
    broke = lease_breaks.new_break(lease, "too long", NOON, [])
    write = lease_breaks.recorded(store, "web", "site:web", lambda _before: broke)
    assert write is not None
    store.commit([write])


def in_maintenance(store: FakeStore) -> None:
    cluster = store.read(paths.cluster())
    assert cluster is not None
    mode = records.Maintenance(who="bob", why="disks", since=NOON)
    store.write(paths.cluster(), records.Cluster(maintenance=mode), cluster.version)


def nothing(_store: FakeStore) -> None:
    pass


CHANGED = FLOW.replace("noop", "console")
CASES: dict[str, tuple[Callable[[FakeStore], None], str, dict[str, Any], str]] = {
    "flow-apply": (nothing, "/flows/web/apply", {"text": CHANGED}, "flow apply web (revision 2)"),
    "flow-rollback": (
        two_revisions, "/flows/web/rollback", {"revision": 1},
        "flow rollback web 1 (revision 3)",
    ),
    "flow-pause": (nothing, "/flows/web/pause", {}, "flow pause web"),
    "flow-resume": (paused, "/flows/web/resume", {}, "flow resume web"),
    "flow-stop": (nothing, "/flows/web/stop", {}, "flow stop web"),
    "flow-delete": (nothing, "/flows/web/delete", {}, "flow delete web"),
    "flow-choke": (nothing, "/flows/web/choke", {"rate": "10MB"}, "flow choke web 1e+07"),
    "flow-handoff": (nothing, "/flows/web/handoff", {}, "flow handoff web"),
    "rollout-pause": (
        rolling, "/flows/web/rollout/pause", {}, "flow rollout pause web (revision 3)",
    ),
    "rollout-promote": (
        rolling, "/flows/web/rollout/promote", {}, "flow rollout promote web (revision 3)",
    ),
    "rollout-abort": (
        rolling, "/flows/web/rollout/abort", {}, "flow rollout abort web (revision 3, back to 1)",
    ),
    "node-drain": (nothing, "/nodes/n3/drain", {}, "node drain n3"),
    "node-undrain": (drained, "/nodes/n3/undrain", {}, "node undrain n3"),
    "node-decommission": (stopped_node, "/nodes/n4/decommission", {}, "node decommission n4"),
    "node-label": (
        nothing, "/nodes/n3/label", {"set": ["rack=b"], "remove": ["role"]},
        "node label n3 rack=b role-",
    ),
    "task-restart": (nothing, "/tasks/web/collect.0/restart", {}, "task restart web/collect.0"),
    "task-move": (
        nothing, "/tasks/web/collect.0/move", {"node": "n3"}, "task move web/collect.0 n3",
    ),
    "queue-retry": (
        failed_item, "/queues/web/retry", {"items": ["item-1"]}, "queue retry web item-1",
    ),
    "queue-skip": (failed_item, "/queues/web/skip", {}, "queue skip web item-1"),
    "cursor-end": (leased, "/cursors/web/job/end", {}, "cursor end web job"),
    "cursor-acknowledge": (
        broken, "/cursors/web/acknowledge", {"cursor": "site:web"},
        "cursor acknowledge web site:web",
    ),
    "maintenance-on": (nothing, "/maintenance/on", {}, "cluster maintenance on"),
    "maintenance-off": (in_maintenance, "/maintenance/off", {}, "cluster maintenance off"),
    "cluster-set": (
        nothing, "/settings/grace_seconds", {"value": "90"},
        "cluster set grace_seconds 90 (was 0)",
    ),
}  # fmt: skip
