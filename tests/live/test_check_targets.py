"""`flumeng flow apply --check-targets`: a node tries the targets, with its network and secrets.

The node only collects and has no task yet, as before the first flow of a cluster.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import UserError
from tests.testkit.servers.postgres import RealPostgres
from tests.testkit.waiting import wait_for
from zkschema import paths

PATIENCE_SECONDS = 120.0
FLOW = """\
flow: {name}
sources: [tail: {{paths: [/var/log/web.log]}}]
place: {{collect: {{labels: {{role: {role}}}}}}}
sinks:
{sinks}
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[RealPostgres]:
    try:
        postgres = RealPostgres()
    except UserError as error:
        pytest.skip(str(error))
    postgres.start()
    postgres.run("CREATE TABLE events (seq bigint)", "CREATE TABLE closed (seq bigint)")
    postgres.run(
        "CREATE ROLE writer LOGIN PASSWORD 'hush-hush-hush'", "GRANT INSERT ON events TO writer"
    )
    yield postgres
    postgres.close()


@dataclass
class Cluster:
    store: Store
    hosts: str
    folder: Path

    def apply(self, name: str, *sinks: str, role: str = "lake") -> subprocess.CompletedProcess[str]:
        file = self.folder / f"{name}.yaml"
        lines = "\n".join(f"- {sink}" for sink in sinks)
        file.write_text(FLOW.format(name=name, role=role, sinks=lines))
        return subprocess.run(
            [sys.executable, "-m", "cli.main", "flow", "apply", "--check-targets", str(file)],
            capture_output=True,
            text=True,
            env={**os.environ, "FLUMENG_ZK": self.hosts},
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def revision(self, name: str) -> int:
        found = self.store.read(paths.flow(name))
        return found.value.revision if found else 0


@pytest.fixture(scope="module")
def cluster(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("checked")
    hosts = f"{zookeeper}/checked"
    secret = folder / "database"
    secret.write_text("hush-hush-hush")
    secret.chmod(0o600)
    policy = folder / "node.yaml"
    policy.write_text(f"secrets: {{database: {{file: {secret}}}}}\n")
    store = connect(hosts)
    tree.init(store)
    command = [sys.executable, "-m", "cli.main", "node", "run", "--zk", hosts, "--name", "n1"]
    command += ["--data", str(folder / "data"), "--role", "collect", "--label", "role=lake"]
    node = subprocess.Popen([*command, "--policy", str(policy)])
    try:
        live = paths.live_node("n1")
        wait_for(lambda: (node := store.read(live)) and node.value.discovery, "no discovery on n1")
        yield Cluster(store, hosts, folder)
    finally:
        node.terminate()
        node.wait(timeout=PATIENCE_SECONDS)
        store.close()


@pytest.fixture
def closed() -> int:
    """A port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def sql(postgres: RealPostgres, table: str, host: str = "127.0.0.1") -> str:
    url = f"postgresql://{host}:{postgres.port}/{postgres.database}"
    secret = "${secret:database}"
    user = f'username: writer, password: "{secret}", sslmode: disable'
    return f'sql: {{url: "{url}", table: {table}, {user}, create: false}}'


@pytest.mark.long
def test_a_flow_is_applied_when_the_node_reaches_every_target(
    cluster: Cluster, postgres: RealPostgres
) -> None:
    ran = cluster.apply("good", sql(postgres, "events"))
    assert ran.returncode == 0, ran.stderr
    assert "flow good: sink sql: reached from node n1" in ran.stdout
    assert cluster.revision("good") == 1


def test_failing_targets_are_reported_with_causes_and_nothing_is_applied(
    cluster: Cluster, postgres: RealPostgres, closed: int
) -> None:
    ran = cluster.apply(
        "bad",
        sql(postgres, "events"),
        f'http: {{url: "http://127.0.0.1:{closed}/in"}}',
        f'http: {{url: "http://no-such-host.invalid:{closed}/in"}}',
        sql(postgres, "absent"),
        sql(postgres, "closed"),
        "python: {function: company.sinks:write}",
        f"files: {{path: {cluster.folder}/data/x, format: json}}",
    )
    assert ran.returncode == 1, ran.stderr
    assert cluster.revision("bad") == 0
    first, *causes = ran.stderr.splitlines()
    assert first == "flumeng: nothing was applied:"
    wanted = [
        ("http", "Connection refused"),
        ("http", "Failed to resolve 'no-such-host.invalid'"),
        ("sql", 'table "public"."absent" does not exist'),
        ("sql", 'may not insert rows into table "public"."closed"'),
        ("python", "this node's policy file does not allow functions of company.sinks"),
        ("files", "is in, or contains, the node's data directory"),
    ]
    assert len(causes) == len(wanted), ran.stderr
    for (sink, cause), line in zip(wanted, causes, strict=True):
        assert line.startswith(f"flow bad: sink {sink}: failed from node n1: "), line
        assert cause in line
    assert "hush" not in ran.stderr + ran.stdout


def test_a_wrong_password_is_reported_and_not_shown(
    cluster: Cluster, postgres: RealPostgres
) -> None:
    postgres.run("ALTER ROLE writer PASSWORD 'another-one'")
    try:
        ran = cluster.apply("denied", sql(postgres, "events"))
    finally:
        postgres.run("ALTER ROLE writer PASSWORD 'hush-hush-hush'")
    assert ran.returncode == 1
    assert 'password authentication failed for user "writer"' in ran.stderr
    assert "hush" not in ran.stderr
    assert cluster.revision("denied") == 0


@pytest.mark.long
def test_target_that_does_not_answer_is_given_up_after_10_seconds(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/in"
        began = time.monotonic()
        ran = cluster.apply("silent", *[f'http: {{url: "{url}"}}'] * 3)
    assert ran.returncode == 1
    assert ran.stderr.count("did not answer within 10 s") == 3
    assert time.monotonic() - began < 30


def test_nothing_is_applied_without_a_node_that_may_collect_the_flow(cluster: Cluster) -> None:
    ran = cluster.apply("nowhere", "noop", role="other")
    assert ran.returncode == 4
    assert "flow nowhere: no live node may collect it" in ran.stderr
    assert cluster.revision("nowhere") == 0


@pytest.mark.long
def test_brokers_of_a_source_are_tried_too(cluster: Cluster, closed: int) -> None:
    file = cluster.folder / "topics.yaml"
    source = f'kafka: {{brokers: ["127.0.0.1:{closed}"], topics: [web]}}'
    file.write_text(f"flow: topics\nsources: [{source}]\nsinks: [noop]\n")
    ran = subprocess.run(
        [sys.executable, "-m", "cli.main", "flow", "apply", "--check-targets", str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "FLUMENG_ZK": cluster.hosts},
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 1
    assert "source kafka: failed from node n1" in ran.stderr
    assert "Connection refused" in ran.stderr
    assert cluster.revision("topics") == 0
