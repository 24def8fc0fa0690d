"""Changes by two consoles on a real ZooKeeper: races, lost replies, and a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from starlette.testclient import TestClient

from flumeng.console.app import make_app
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.history import audit
from flumeng.control.zookeeper import ABSENT, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for
from tests.testkit.zookeeper import Proxy
from zkschema import paths, records

FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
sinks: [noop]
"""
ANN = Viewer("ann@example.com", "operator")
RACES = 5


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealZooKeeper]:
    server = RealZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def stores(
    zookeeper: RealZooKeeper, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Store]]:
    """Opens sessions to a cluster of its own with the flow web and the node n1."""
    opened: list[Store] = []
    chroot = f"/{request.node.name}"

    def open_store(address: str = zookeeper.address) -> Store:
        opened.append(connect(f"{address}{chroot}", session_seconds=20.0))
        return opened[-1]

    store = open_store()
    tree.init(store)
    apply_flow(Operator(store, "bob", "", 0.0), FLOW)
    store.write(paths.node("n1"), records.Node(uuid="n1", roles=("collect",)), ABSENT)
    yield open_store
    for each in opened:
        each.close()


def client_of(store: Store) -> TestClient:
    return TestClient(make_app(Console(store), lambda _request: ANN))


def post(client: TestClient, path: str, body: dict[str, Any], **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(f"/api/v1{path}", json=body, headers=named)


def commands(store: Store) -> list[str]:
    return [row.command for row in audit(store, 500) if row.who == ANN.name]


def together(*acts: Callable[[], Any]) -> list[Any]:
    gate = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(number: int) -> None:
        gate.wait(20)
        results[number] = acts[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_one_of_two_consoles_wins_a_revision(stores: Callable[..., Store]) -> None:
    first, second = client_of(stores()), client_of(stores())
    for race in range(1, RACES + 1):
        answers = together(
            *(
                partial(
                    post,
                    client,
                    "/flows/web/apply",
                    {"text": f"{FLOW}# {race} {name}\n"},
                    if_match=f'"{race}"',
                )
                for name, client in (("first", first), ("second", second))
            )
        )
        assert sorted(answer.status_code for answer in answers) == [200, 412], race
        won = next(answer for answer in answers if answer.status_code == 200)
        lost = next(answer for answer in answers if answer.status_code == 412)
        assert won.headers["etag"] == lost.headers["etag"] == f'"{race + 1}"'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/flows/web/handoff", {}),
        ("/flows/web/choke", {"rate": "10MB"}),
        ("/nodes/n1/drain", {}),
        ("/settings/grace_seconds", {"value": "77"}),
    ],
)
def test_two_consoles_with_one_key_act_once(
    stores: Callable[..., Store], path: str, body: dict[str, Any]
) -> None:
    clients = [client_of(stores()) for _ in range(2)]
    for race in range(RACES):
        answers = together(
            *(partial(post, client, path, body, idempotency_key=f"k{race}") for client in clients)
        )
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json() == answers[1].json()
    done = [command for command in commands(stores()) if not command.endswith("(unchanged)")]
    assert len(done) == (RACES if path.endswith("handoff") else 1)


def test_a_change_without_a_reply_is_found_by_its_key(
    stores: Callable[..., Store], zookeeper: RealZooKeeper
) -> None:
    proxy = Proxy(zookeeper.port)
    shaky = stores(proxy.address)
    client, sent = client_of(shaky), threading.Event()
    commit = shaky.commit

    def commit_without_reply(writes: Any) -> Any:
        if any(write.path == paths.flow("web") for write in writes) and not sent.is_set():
            proxy.drop_replies()
            sent.set()
        return commit(writes)

    shaky.commit = commit_without_reply  # type: ignore[method-assign]
    lost = post(client, "/flows/web/handoff", {"reason": "now"}, idempotency_key="k")
    assert sent.is_set()
    proxy.heal()
    wait_for(lambda: shaky.connected, seconds=30)
    again = post(client, "/flows/web/handoff", {"reason": "now"}, idempotency_key="k")
    restarted = client_of(stores())
    other = post(restarted, "/flows/web/handoff", {"reason": "now"}, idempotency_key="k")
    assert lost.status_code in (200, 503)
    assert again.json() == other.json() == {"flow": "web", "handoff": 1}
    assert commands(stores()) == ["flow handoff web"]
    proxy.close()
