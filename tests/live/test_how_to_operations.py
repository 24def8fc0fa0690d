"""The commands of how-to pages for operators run as they are written, and print what is there."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from flumeng.agent.standalone.embedded import free_port
from tests.live.how_to import COMMAND_SECONDS, TOP
from tests.live.how_to_hosts import HERE, Hosts
from tests.live.receiver import Receiver
from tests.testkit.waiting import retry, wait_for

pytestmark = pytest.mark.long

EVENTS = 1200
WEB = """
flow: web
sources: [generate: {{events_per_second: 0, count: {events}}}]
place: {{ingest: {{labels: {{role: web}}}}}}
batch: {{seconds: 0.3}}
{more}
sinks: [{sink}]
"""
REPLICATED = "durability: replicated\nreplicas: {copies: 2, min_in_sync: 1}"


def web(sink: str = "noop", more: str = "", events: int = EVENTS) -> str:
    """Each node with the label ``role=web`` receives so many events."""
    return WEB.format(sink=sink, more=more, events=events)


def objects(folder: Path) -> str:
    """A flow that reads the files in ``in``."""
    source = f'objects: {{paths: ["{folder}/in/*"], shared: true, discovery_seconds: 0.5}}'
    return f"flow: orders\nsources: [{source}]\nsinks: [noop]\n"


@pytest.fixture(scope="module")
def hosts_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture
def hosts(hosts_of_all: Hosts) -> Iterator[Hosts]:
    yield hosts_of_all
    hosts_of_all.clean()


@pytest.fixture
def server(tmp_path: Path) -> Receiver:
    """A target that is away until ``start``."""
    return Receiver(tmp_path / "received", free_port())


def http(server: Receiver) -> str:
    return f'http: {{url: "{server.url}", idempotent: true}}'


def test_drain_a_node(hosts: Hosts, server: Receiver, tmp_path: Path) -> None:
    hosts.node("n2", "--label", "role=web", unit=HERE)
    hosts.apply(web(http(server)), tmp_path)
    wait_for(lambda: hosts.unacked() == EVENTS, "not all events arrive")
    with hosts.page("drain-a-node", tmp_path, NODE="n2") as page:
        page.run("flumeng node drain NODE --dry-run")
        page.run('flumeng node drain NODE --reason "old disk"', again=True)
        server.start()
        page.run("flumeng node drain NODE --wait")
        page.run("systemctl stop flumeng-node")
        page.run("flumeng node decommission NODE")
        assert "n2" not in page.run("flumeng node list")


def test_maintenance(hosts: Hosts, tmp_path: Path) -> None:
    hosts.node("n2", "--label", "role=web")
    hosts.node("old-host")
    hosts.apply(web(), tmp_path)
    with hosts.page("maintenance", tmp_path) as page:
        page.run("flumeng cluster maintenance on")
        page.run("flumeng cluster show")
        page.run("flumeng cluster maintenance off")
        page.run("flumeng cluster audit")
        page.run("flumeng cluster set grace_seconds 120")
        page.run("flumeng task wait --active")
        (tmp_path / "deploy.flumeng").write_text(page.text_of("text", 1))
        page.run("flumeng shell -c")
        hosts.command("flow", "resume", "web")
        page.rest()


def test_change_a_flow(hosts: Hosts, tmp_path: Path) -> None:
    hosts.node("n2", "--label", "role=web", "--label", "role=spark")
    good = (TOP / "conf" / "flows" / "web-logs.yaml").read_text()
    good = good.replace("0.0.0.0:5514", f"127.0.0.1:{free_port()}").replace("tasks: 4", "tasks: 1")
    good = good.replace("{role: spark}", "{}").replace("s3a://lake", f"{tmp_path}/lake")
    good = good.replace("format: parquet", "shared: true")
    file = tmp_path / "web-logs.yaml"
    for revision in range(1, 5):
        hosts.apply(f"{good}# {revision}\n", tmp_path, file.name)
    with hosts.page("change-a-flow", tmp_path) as page:
        file.write_text(good.replace("listen:", "listn:"))
        page.run("flumeng flow validate", code=2)
        file.write_text(f"{good}# 5\n")
        page.rest()


def test_roll_out_a_revision(hosts: Hosts, tmp_path: Path) -> None:
    for name in ("n2", "n3"):
        hosts.node(name, "--label", "role=web", "--role", "ingest")
    with hosts.page("roll-out-a-revision", tmp_path) as page:
        rollout = (
            page.text_of("yaml") + "\nplace: {collect: {tasks: 2}, ingest: {labels: {role: web}}}"
        )
        text = web(more=rollout, events=0).replace("place: {ingest: {labels: {role: web}}}\n", "")
        text = text.replace("events_per_second: 0", "events_per_second: 50")
        file = hosts.apply(text, tmp_path)
        hosts.command("task", "wait", "--active")
        file.write_text(text + "# 2\n")
        page.run("flumeng flow apply web.yaml --dry-run")
        page.run("flumeng flow apply web.yaml --reason")
        page.run("flumeng flow rollout status", again=True)
        page.run("flumeng flow show")
        page.run("flumeng flow rollout pause")
        page.run("flumeng flow rollout resume")
        page.run("flumeng flow rollout promote")
        page.run("flumeng flow wait web --rolled-out")
        page.run("flumeng task list web")
        hosts.apply(text + "# 3\n", tmp_path)
        page.run("flumeng flow rollout abort")


def test_scale_a_flow(hosts: Hosts, tmp_path: Path) -> None:
    hosts.node("n2", "--label", "role=web", "--label", "disk=old")
    text = web().replace("place: {ingest: {labels: {role: web}}}\n", "")
    with hosts.page("scale-a-flow", tmp_path, NODE="n2") as page:
        file = hosts.apply(text, tmp_path)
        page.run("flumeng flow lag")
        page.run("flumeng flow show")
        file.write_text(text + page.text_of("yaml"))
        page.run("flumeng flow apply web.yaml --dry-run")
        page.run("flumeng flow apply web.yaml --reason")
        late = objects(tmp_path) + page.text_of("yaml", 1)
        hosts.apply(late, tmp_path, "orders.yaml", runs=False)
        hosts.command("flow", "delete", "orders", "--discard", "--yes", "--wait")
        hosts.apply(text, tmp_path)
        hosts.command("task", "wait", "--active", "--timeout", "120")
        page.rest()


def test_damaged_journal(hosts: Hosts, server: Receiver, tmp_path: Path) -> None:
    data = hosts.node("n2", "--label", "role=web", unit=HERE)
    in_frames = web(http(server)).replace("events_per_second: 0", "events_per_second: 1000")
    hosts.apply(in_frames, tmp_path)
    wait_for(lambda: hosts.unacked() == EVENTS, "not all events arrive")
    (journal,) = hosts.journals()
    directory = data / "journals" / journal.split(".")[2] / journal
    with hosts.page("damaged-journal", tmp_path, DIR=directory) as page:
        hosts.units.stop(HERE)
        damage(directory)
        hosts.units.start(HERE)
        wait_for(lambda: journal in hosts.run("status").stdout, "status does not name it")
        page.run("flumeng status", code=1)
        page.run("flumeng journal verify DIR", code=1)
        page.run("systemctl stop flumeng-node")
        page.run("flumeng journal repair DIR ")
        hosts.units.start(HERE)
        wait_for(lambda: "stops at" in hosts.command("journal", "list"), "no reader stops")
        hosts.units.stop(HERE)
        page.run("flumeng journal repair DIR --accept-loss")
        hosts.units.start(HERE)
        wait_for(lambda: " lost" in hosts.command("journal", "list"), "no loss is shown")
        assert "closed, " in page.run("flumeng journal list")
        server.start()
        wait_for(lambda: hosts.unacked() == 0, "intact events are not delivered")


def damage(directory: Path) -> None:
    """Change a byte of an event in the middle, and leave what recovery from a crash leaves."""
    segment = max(directory.glob("*.segment"))
    (directory / f"{segment.name}.64.broken").touch()
    data = bytearray(segment.read_bytes())
    frames = [at for at in range(0, len(data), 64) if data[at : at + 4] == b"FLFR"]
    data[frames[len(frames) // 2] + 200] ^= 1
    segment.write_bytes(data)


def test_dead_letters(hosts: Hosts, tmp_path: Path) -> None:
    hosts.node("n2", "--label", "role=web")
    wrong = 'filters: [{parse: {format: json, schema: "n BIGINT"}, on_error: dead-letter}]\n'
    right = "filters: [{parse: {format: regex, pattern: '^1 (?P<n>.*)'}, on_error: dead-letter}]\n"
    dead = f"dead_letters: {{files: {{path: {tmp_path}/dead, format: json, shared: true}}}}\n"
    lake = f'files: {{path: "{tmp_path}/lake", shared: true}}'
    in_three = web(lake, dead + wrong).replace("seconds: 0.3", "seconds: 0.3, events: 400")
    hosts.apply(in_three, tmp_path)
    wait_for(lambda: any((tmp_path / "dead").glob("part-*")), "there are no dead letters")
    wait_for(lambda: hosts.unacked() == 0, "not all events are acked")
    hosts.apply(web(lake, dead + right), tmp_path)
    values = {"/data/dead/web": f"{tmp_path}/dead", "2026-11-23T00:00:00Z": "2026-01-01T00:00:00Z"}
    with hosts.page("dead-letters", tmp_path, **values) as page:
        page.run("flumeng flow dead list web", again=True)
        page.run("flumeng flow dead show")
        page.run("flumeng flow dead replay")
        page.run("flumeng flow dead replay")
        page.run("flumeng flow wait")
        page.run("flumeng flow delete")
        page.run("flumeng flow dead purge")
        page.run("flumeng flow dead purge", typed="y\n")
        page.rest()


def test_batch_that_cannot_finish(hosts: Hosts, server: Receiver, tmp_path: Path) -> None:
    """Files cannot be moved into place, and are lost then; after that a server is away."""
    hosts.node("n2", "--label", "role=web")
    lake = tmp_path / "lake"
    lake.mkdir()
    days = [lake / f"dt={datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}" for days in (0, 1)]
    for day in days:
        day.write_text("a file where a directory is to be")
    exactly = "delivery: exactly-once"
    sink = f'files: {{path: "{lake}/dt=%Y-%m-%d", shared: true}}'
    hosts.apply(web(sink, exactly), tmp_path, runs=False)
    with hosts.page("batch-that-cannot-finish", tmp_path, NODE="n2") as page:
        wait_for(lambda: commits(hosts), "no commit stays")
        page.run("flumeng task list")
        for file in lake.rglob("*.parquet"):
            file.unlink()
        page.run("flumeng ack commits web  ")
        page.run("flumeng ack commits web --json")
        (commit,) = commits(hosts)
        page.run("flumeng ack drop web COMMIT", typed="y\n", COMMIT=commit)
        for day in days:
            day.unlink()
        hosts.command("flow", "delete", "web", "--discard", "--yes", "--wait")
        hosts.apply(web(http(server), exactly), tmp_path, runs=False)
        wait_for(
            lambda: json.loads(hosts.command("ack", "intents", "--json")), "no batch is decided"
        )
        page.run("flumeng ack intents web")
        page.run("flumeng ack drop web collect.0", typed="y\n")
        server.start()
        page.rest()


def commits(hosts: Hosts) -> list[str]:
    return [row["name"] for row in json.loads(hosts.command("ack", "commits", "web", "--json"))]


def test_read_again(hosts: Hosts, tmp_path: Path) -> None:
    """Objects are read again beside the flow, and a journal's events in the flow."""
    hosts.node("n2", "--label", "role=web")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.log").write_text("line\n" * EVENTS)
    values = {"2026-11-23T09:00:00Z": "2026-01-01T00:00:00Z"}
    with hosts.page("read-again", tmp_path, **values) as page:
        hosts.apply(objects(tmp_path), tmp_path)
        page.run("flumeng flow backfill", again=True)
        page.run("flumeng flow backfill")
        page.run("flumeng flow wait")
        page.run("flumeng flow delete")
        page.run("flumeng flow pause")
        page.run("flumeng flow reset", typed="y\n")
        page.rest()


def test_look_at_a_cluster(hosts: Hosts, tmp_path: Path) -> None:
    """The sink of a flow is away, while more and more events wait; later all are delivered."""
    hosts.master("flumeng-master-2")
    hosts.node("n2", "--label", "role=web", "--role", "ingest")
    port = free_port()
    text = web(f'elasticsearch: {{hosts: ["http://127.0.0.1:{port}"], index: web}}', events=0)
    hosts.apply(text.replace("events_per_second: 0", "events_per_second: 20"), tmp_path)
    sites = f'sites: {{here: {{zookeeper: "{hosts.zk}"}}}}'
    waves = "waves: [{wave: all, sites: [here]}]"
    inventory = tmp_path / "inventory"
    inventory.mkdir()
    (inventory / "sites.yaml").write_text(f"{{inventory: one, {sites}, {waves}}}")
    with hosts.page("look-at-a-cluster", tmp_path) as page:
        wait_for(lambda: ", growing" in hosts.run("status").stdout, "the lag does not grow")
        page.run("flumeng status  ", code=1, again=True)
        page.values |= {"FLOW": "web", "TASK": "collect.0", "NODE": "n2"}  # FLOW is a column, too
        page.run("flumeng flow show")
        page.run("flumeng flow lag")
        page.run("flumeng task list FLOW")
        page.run("flumeng node story")
        hosts.apply(web(events=0), tmp_path)
        page.shell.run(f"export FLUMENG_INVENTORY={inventory}", COMMAND_SECONDS)
        page.rest()


def test_unreadable_record(hosts: Hosts, tmp_path: Path) -> None:
    hosts.node("n2", "--label", "role=web")
    hosts.apply(web(), tmp_path)
    with hosts.page("unreadable-record", tmp_path) as page:
        spoil(hosts)
        page.run("flumeng status", code=1)
        page.run("flumeng schema verify ", code=1)
        page.run("flumeng schema verify --json", code=1)
        page.run("flumeng schema verify --fix", typed="y\n")
        page.rest()


def spoil(hosts: Hosts) -> None:
    """Write a plan that is not JSON, and a journal of a flow that is not there."""
    client = KazooClient(hosts.zk)
    client.start()
    client.set("/flows/web/plan", b"edited by hand: \xff")
    (journal,) = hosts.journals()
    record, _ = client.get(f"/journals/{journal}")
    client.create("/journals/old.n2.0.5f2a0000", record.replace(b'"web"', b'"old"'))
    client.stop()
    client.close()


def test_upgrade(hosts: Hosts, tmp_path: Path) -> None:
    hosts.node("n2", "--label", "role=web", unit=HERE)
    hosts.apply(web(), tmp_path)
    with hosts.page("upgrade", tmp_path, **{"/opt/flumeng": tmp_path / "flumeng"}) as page:
        (tmp_path / "flumeng" / "bin").mkdir(parents=True)
        page.program("pip", "exit 0")
        (tmp_path / "flumeng" / "bin" / "pip").symlink_to(page.bin / "pip")
        page.run("flumeng schema export")
        page.rest()


def test_monitor(hosts: Hosts, tmp_path: Path) -> None:
    """No node of the test has the page's addresses, so it runs on loopback."""
    master, node = (f"127.0.0.1:{free_port()}" for _ in range(2))
    values: dict[str, object] = {
        "10.0.0.5:9464": master,
        "10.0.0.7:9464": node,
        "10.0.0.7": "127.0.0.1",
        "/var/lib/flumeng": f"{tmp_path}/data --name n2",
    }
    (tmp_path / "conf").symlink_to(TOP / "conf")
    with hosts.page("monitor", tmp_path, **values) as page:
        page.begin("flumeng master")
        page.begin("flumeng node run")
        wait_for(lambda: hosts.is_live("n2"), "the node does not come", ignoring=KeyError)
        page.run("curl -s http://10.0.0.7:9464/readyz", again=True)
        page.run("curl -s http://10.0.0.7:9464/healthz")
        page.run("curl -s http://10.0.0.7:9464/metrics | grep flumeng_child_up", again=True)
        page.excuse("promtool", "test_metrics_conf.py parses the rules; Prometheus is not here")
        page.rest()


def test_watch_events(hosts: Hosts, tmp_path: Path) -> None:
    hosts.node("n2", "--label", "role=web")
    port = free_port()
    text = web(more='filters: [parse: {format: syslog}, where: "severity <= 4"]', events=0)
    text = text.replace("flow: web", "flow: web-logs").replace(
        "generate: {events_per_second: 0, count: 0}",
        f'syslog: {{listen: "127.0.0.1:{port}", protocol: tcp}}',
    )
    hosts.apply(text, tmp_path)
    with hosts.page("watch-events", tmp_path) as page, sending(port):
        page.run("flumeng flow graph")
        page.run("flumeng flow counters")
        page.run("flumeng flow tap")


@contextlib.contextmanager
def sending(port: int) -> Iterator[None]:
    """Lines of syslog arrive all the time."""
    done = threading.Event()
    connection = retry(lambda: socket.create_connection(("127.0.0.1", port)), OSError)

    def send() -> None:
        with connection:
            while not done.wait(0.05):
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                connection.sendall(f"<11>1 {now} web2 su - - - login 15619\n".encode())

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        done.set()
        sender.join()


def test_replace_a_lost_host(hosts: Hosts, server: Receiver, tmp_path: Path) -> None:
    hosts.node("n2", "--label", "role=web", unit=HERE)
    hosts.apply(web(http(server)), tmp_path)
    wait_for(lambda: hosts.unacked() == EVENTS, "not all events arrive")
    with hosts.page("replace-a-lost-host", tmp_path) as page:
        hosts.units.stop(HERE, signal.SIGKILL)
        wait_for(lambda: not hosts.is_live("n2"), "it is live")
        page.run("flumeng node show", NODE="n2")
        page.run("flumeng journal list")
        page.run("flumeng node decommission", NODE="n2", typed="y\n")
        replicated(hosts, web(http(server), REPLICATED), tmp_path)
        (journal,) = hosts.journals()
        page.values["JOURNAL"] = journal
        page.run("flumeng journal add-replica", NODE="n5")
        wait_for(
            lambda: set(in_sync(hosts, journal)) == {"n3", "n4", "n5"}, "a replica stays behind"
        )
        page.run("flumeng journal move", OLD="n5", NODE="n6")
        wait_for(
            lambda: set(in_sync(hosts, journal)) == {"n3", "n4", "n6"}, "the replica does not move"
        )
        page.run("flumeng journal drop-replica", NODE="n6")
        hosts.command("cluster", "maintenance", "on", "--reason", "no other node gets a replica")
        for name in ("n5", "n6", "n4"):
            hosts.units.stop(f"node-{name}", signal.SIGKILL)
        wait_for(lambda: in_sync(hosts, journal) == ["n3"], "a lost replica stays in sync")
        hosts.units.stop("node-n3", signal.SIGKILL)
        hosts.units.start("node-n4")
        wait_for(lambda: hosts.is_live("n4") and not hosts.is_live("n3"), "n4 is not alone")
        page.run("flumeng journal promote JOURNAL --to NODE --unclean", typed="y\n", NODE="n4")
        hosts.units.start("node-n3")
        wait_for(lambda: set(in_sync(hosts, journal)) == {"n3", "n4"}, "n3 stays behind")
        page.run("flumeng journal promote", NODE="n3")
        hosts.command("cluster", "maintenance", "off")
        for name in ("n5", "n6"):
            hosts.units.start(f"node-{name}")
        server.start()
        page.run("flumeng status", again=True)


def replicated(hosts: Hosts, text: str, folder: Path) -> None:
    """Apply a flow whose events are on n3 and n4, beside n5 and n6."""
    hosts.command("flow", "delete", "web", "--discard", "--yes")
    for name in ("n3", "n4"):
        role = ("--label", "role=web", "--role", "ingest") if name == "n3" else ()
        hosts.node(name, "--role", "replica", *role)
    hosts.apply(text, folder)
    wait_for(lambda: set(in_sync(hosts)) == {"n3", "n4"}, "no replica is in sync")
    for name in ("n5", "n6"):
        hosts.node(name, "--role", "replica")


def in_sync(hosts: Hosts, journal: str = "") -> list[str]:
    """The nodes in sync of all journals whose names begin so."""
    rows = json.loads(hosts.command("journal", "list", "--json"))
    return [name for row in rows if row["journal"].startswith(journal) for name in row["in_sync"]]


def test_back_up_and_restore(tmp_path: Path) -> None:
    """ZooKeeper is lost, and with it the record of a journal that the last export lacks."""
    folder = tmp_path / "hosts"
    folder.mkdir()
    hosts = Hosts(folder)
    try:
        hosts.start()
        for name in ("n3", "n4"):
            hosts.node(name, "--role", "replica", "--role", "ingest")
        hosts.apply(web(more=REPLICATED), tmp_path)
        values = {"zk9:2181/new": f"{hosts.zk}-new"}
        with hosts.page("back-up-and-restore", tmp_path, **values) as page:
            page.run("flumeng schema export")
            page.run("flumeng schema import")
            hosts.command("node", "label", "n3", "role=web")
            wait_for(lambda: set(in_sync(hosts)) == {"n3", "n4"}, "no replica is in sync")
            wait_for(lambda: hosts.unacked() == 0, "not all is delivered")
            (journal,) = hosts.journals()
            hosts.units.stop("node-n3", signal.SIGKILL)
            lose_zookeeper(hosts)
            hosts.command("schema", "import", tmp_path / "cluster.json")
            page.run("flumeng ack advance --all --dry-run")
            page.run("flumeng ack advance --all --reason", typed="y\n")
            wait_for(lambda: journal in hosts.run("status").stdout, "status does not name it")
            page.run("flumeng journal promote", typed="y\n", JOURNAL=journal, NODE="n4")
            page.run("flumeng schema verify", again=True)
            page.run("flumeng status", code=1)
    finally:
        hosts.stop()


def lose_zookeeper(hosts: Hosts) -> None:
    """Replace ZooKeeper by an empty one."""
    hosts.zookeeper.kill()
    shutil.rmtree(hosts.zookeeper.data)
    hosts.zookeeper.start()
