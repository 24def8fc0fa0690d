"""The how-to pages about certificates, secrets, signatures, limits of hosts, hosts and sites."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import sites_job
from flumeng.agent.standalone.embedded import free_port
from flumeng.control.zookeeper import tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.how_to import TOP, HowTo
from tests.live.one_host import FLUMENG
from tests.live.units import Units
from tests.testkit.certificates import Certificates
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for

BAD = "{flow: bad, sources: [syslog: {listen: '192.0.2.1:5514'}], sinks: [noop]}"
"""No host here has its address."""
MASTER, NODE = "flumeng-master", "flumeng-node"


class Host:
    """A master and a node with the policy file ``node.yaml``, as units that a page restarts."""

    def __init__(self, hosts: str, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.policy = folder / "node.yaml"
        self.units = Units(folder / "units")
        with closing(connect(hosts)) as store:
            tree.init(store)
        self.policy.write_text('tap: ["*"]\n')
        self.units.add(MASTER, FLUMENG, "master", FLUMENG_ZK=hosts)
        self.define()

    def define(self, **environment: str) -> None:
        """Set the environment of the node for its next start."""
        options = ["--data", self.folder / "node", "--name", "web1", "--policy", self.policy]
        self.units.add(NODE, FLUMENG, "node", "run", *options, FLUMENG_ZK=self.hosts, **environment)

    def start(self) -> None:
        self.units.start(MASTER)
        self.units.start(NODE)

    def page(self, name: str, **values: object) -> HowTo:
        page = HowTo(
            name, self.folder, {"FLUMENG_ZK": self.hosts, "HOME": str(self.folder)}, values
        )
        self.units.install(page.bin)
        return page

    def apply(self, text: str, name: str = "web") -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(text)
        done = self._flumeng("flow", "apply", str(file))
        assert done.returncode == 0, done.stderr
        return file

    def status(self) -> str:
        return self._flumeng("status").stdout

    def _flumeng(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(FLUMENG), *words, "--zk", self.hosts]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def host(hosts: str, tmp_path: Path) -> Iterator[Host]:
    host = Host(hosts, tmp_path)
    yield host
    host.units.stop_all()


def generated(folder: Path, more: str = "") -> str:
    """A flow of numbered events into a lake."""
    return (
        "flow: web\nsources: [generate: {events_per_second: 100}]\nbatch: {seconds: 0.2}\n"
        f"sinks: [files: {{path: {folder}/lake, format: json}}]\n{more}"
    )


@contextmanager
def search(seen: list[str]) -> Iterator[str]:
    """A server that keeps what clients prove; its URL."""

    class Search(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Search)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/events"
    server.shutdown()
    server.server_close()


@pytest.mark.long
def test_secrets(host: Host) -> None:
    """The password reaches the sink, and is in neither the flow nor ZooKeeper."""
    seen: list[str] = []
    values = {"/etc/flumeng/secrets": host.folder / "secrets", "-o flumeng": f"-o {os.getuid()}"}
    with search(seen) as url, host.page("secrets", **values) as page:
        page.run("install -d")
        page.run("install -o", typed="correct horse\n")
        host.policy.write_text(page.text_of("yaml"))
        host.start()
        header = 'headers: {Authorization: "Bearer ${secret:search}"}'
        host.apply(
            "flow: web\nsources: [generate: {events_per_second: 100}]\nbatch: {seconds: 0.2}\n"
            f'sinks: [http: {{url: "{url}", {header}}}]\n'
        )
        wait_for(lambda: seen, host.units.log(NODE).read_text)
        page.run("flumeng status", again=True)
    assert set(seen) == {"Bearer correct horse"}


@pytest.mark.long
def test_sign_revisions(host: Host) -> None:
    flow = host.apply(generated(host.folder))
    with host.page("sign-revisions") as page:
        page.values["FILE..."] = "web.yaml other.yaml"
        page.values["PUBLIC_HALF"] = page.run("flumeng cluster secure").split()[-1]
        host.policy.write_text(page.text_of("yaml"))
        host.start()
        (host.folder / "other.yaml").write_text(
            flow.read_text().replace("flow: web", "flow: other")
        )
        host.apply((host.folder / "other.yaml").read_text(), "other")
        refused = "is not signed with a key of this node's policy file"
        wait_for(lambda: refused in host.status(), host.status)
        page.run("export")
        page.run("flumeng flow apply")
        page.run("flumeng status", again=True)


@pytest.mark.long
def test_restrict_a_host(host: Host) -> None:
    """The flow that the policy allows runs, and the other one is refused."""
    values = {"/var/log": host.folder, "/var/lib/lake": host.folder / "lake", "5514": free_port()}
    values["/etc/flumeng/tls"] = host.folder / "tls"
    with host.page("restrict-a-host", **values) as page:
        host.start()
        syslog = f'syslog: {{listen: "127.0.0.1:{values["5514"]}"}}'
        for name, source, lake in (("web", syslog, "lake"), ("bad", "generate: {}", "other")):
            sink = f"files: {{path: {host.folder}/{lake}}}"
            host.apply(f"flow: {name}\nsources: [{source}]\nsinks: [{sink}]\n", name)
        host.policy.write_text(page.text_of("yaml"))
        page.run("systemctl")
        refused = "this node's policy file does not allow"
        runs = re.compile(r"^web\s+running\s+1\s+2/2", re.MULTILINE)
        wait_for(lambda: refused in host.status() and runs.search(host.status()), host.status)
        page.run("flumeng status", code=1)


@pytest.fixture
def secured(
    secure_zookeeper: RealZooKeeper, certificates: Certificates, hosts: str
) -> dict[str, str]:
    """The environment of an administrator in a cluster with certificates."""
    zookeeper = f"{secure_zookeeper.address}/{hosts.rpartition('/')[2]}"
    admin = {
        "FLUMENG_ZK": zookeeper,
        "FLUMENG_IDENTITY": str(certificates.folder("admin", name="root")),
    }
    for words in ("schema init", "schema secure"):
        subprocess.run([FLUMENG, *words.split()], env=os.environ | admin, check=True)
    return admin


def test_give_operators_some_flows(
    secured: dict[str, str], certificates: Certificates, tmp_path: Path
) -> None:
    for name in ("web", "other"):
        flow = tmp_path / f"{name}.yaml"
        flow.write_text(f"flow: {name}\nsources: [generate: {{}}]\nsinks: [noop]\n")
        subprocess.run([FLUMENG, "flow", "apply", flow], env=os.environ | secured, check=True)
    bob = certificates.folder("operator", name="bob")
    with HowTo("give-operators-some-flows", tmp_path, secured) as page:
        page.run("flumeng schema secure")
        page.shell.run(f"export FLUMENG_IDENTITY={bob}", 10)
        page.run("flumeng flow pause other", code=6)
        page.shell.run("flumeng flow pause web", 60)
        assert page.shell.code == 0


@pytest.mark.long
def test_encrypt_journals(host: Host) -> None:
    """Also after a rotation: the old key still opens the old journal."""
    with host.page("encrypt-journals") as page:
        old = page.run("openssl").strip()
        keys = {"FLUMENG_SECRET_JOURNAL_2026_11": old, "FLUMENG_SECRET_JOURNAL_2027_05": old[::-1]}
        host.define(**keys)
        host.start()
        host.apply(generated(host.folder, page.text_of("yaml")))

        def journals() -> list[Path]:
            return sorted(file.parent for file in host.folder.glob("node/**/encryption.json"))

        wait_for(journals, host.units.log(NODE).read_text)
        (first,) = journals()
        wait_for(lambda: list(host.folder.glob("lake/**/*.json*")), host.units.log(NODE).read_text)
        assert "journal-2026-11" in (first / "encryption.json").read_text()
        page.shell.run(f"export FLUMENG_SECRET_JOURNAL_2026_11={old}", 10)
        page.run("flumeng journal verify", DIR=first)
        host.apply(generated(host.folder, page.text_of("yaml", 1)))
        wait_for(
            lambda: any(
                "journal-2027-05" in (one / "encryption.json").read_text() for one in journals()
            )
        )


@pytest.mark.long
def test_tls(tmp_path: Path) -> None:
    """From no certificate to a cluster that collects, and that expels a node."""
    units = Units(tmp_path / "units")
    values: dict[str, object] = {f"{name}.example": "127.0.0.1" for name in ("zk1", "m1")} | {
        "web1.example": "localhost",
        "10.0.0.7": "127.0.0.1",
        "2281": free_port(),
    }
    values |= {"DATA": tmp_path / "zookeeper", "/etc/flumeng/identity": tmp_path / "web1"}
    hosts = f"127.0.0.1:{values['2281']}/flumeng"
    with HowTo("tls", tmp_path, {"HOME": str(tmp_path)}, values) as page:
        try:
            page.run("flumeng cluster secure init")
            for start in ("export FLUMENG_",) * 2 + ("flumeng ",) * 4:
                page.run(start)
            page.begin("FLUMENG_IDENTITY=zk1")
            page.run("export FLUMENG_ZK")
            page.run("flumeng schema init", again=True)
            page.run("flumeng schema secure --member")
            for unit, words, identity in (
                (MASTER, "master", "m1"),
                (NODE, f"node run --data {tmp_path}/node --name web1 --host 127.0.0.1", "web1"),
            ):
                units.add(
                    unit, FLUMENG, *words.split(),
                    FLUMENG_ZK=hosts, FLUMENG_IDENTITY=str(tmp_path / identity),
                )  # fmt: skip
                units.start(unit)
            (tmp_path / "web.yaml").write_text(generated(tmp_path))
            page.shell.run("export FLUMENG_IDENTITY=$PWD/bob; flumeng flow apply web.yaml", 60)
            lake = tmp_path / "lake"
            wait_for(lambda: list(lake.glob("**/*.json*")), units.log(NODE).read_text)
            page.shell.run("export FLUMENG_IDENTITY=~/fra-ca/alice", 10)
            page.run("flumeng cluster secure show")
            page.run("flumeng schema verify")
            page.run("flumeng schema secure --without")
        finally:
            units.stop_all()


@pytest.mark.long
def test_install_on_hosts(zookeeper: str, tmp_path: Path) -> None:
    """From a copy of the checkout; the packages that it needs are those of this Python."""
    source = tmp_path / "checkout"
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(tracked, cwd=TOP, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (TOP / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, source / name)
    system = tmp_path / "system"
    for place in ("usr/lib/sysusers.d", "etc/systemd/system", "var/lib/flumeng"):
        (system / place).mkdir(parents=True)
    values = {
        "/opt/flumeng": system / "opt",
        "/usr/lib/sysusers.d": system / "usr/lib/sysusers.d",
        "/etc/systemd/system": system / "etc/systemd/system",
        "/var/lib/flumeng": system / "var/lib/flumeng",
        "zk1:2181,zk2:2181,zk3:2181": zookeeper,
        "10.0.0.7": "127.0.0.1",
        "7500": free_port(),
        "sudo -u flumeng": "env",
    }
    units = Units(tmp_path / "units")
    packages = {"PYTHONPATH": sysconfig.get_path("purelib"), "PIP_NO_COMPILE": "1"}
    with HowTo("install-on-hosts", source, packages, values) as page:
        units.install(page.bin)
        page.program("python3", f'exec {sys.executable} "$@"')
        page.program("systemd-sysusers", f"exec /usr/bin/systemd-sysusers --root={system}")
        (source / ".venv").symlink_to(sys.prefix)
        try:
            for start in ("python3", "/opt/flumeng/bin/pip", "cp", "systemd-sysusers", "cp"):
                page.run(start)
            assert "flumeng" in (system / "etc/passwd").read_text()
            page.run("export")
            page.run("flumeng schema init")
            node = page.text_of("ini").partition("ExecStart=\nExecStart=")[2].split()
            hosts = f"{zookeeper}/flumeng"
            units.add(NODE, *node, FLUMENG_ZK=hosts, **packages)
            units.add(MASTER, f"{system}/opt/bin/flumeng", "master", FLUMENG_ZK=hosts, **packages)
            page.run("systemctl enable --now flumeng-master")
            page.run("systemctl enable --now flumeng-node")
            page.run("sudo")
            assert list((system / "var/lib/flumeng/cache").iterdir())
            assert "CycloneDX" in page.run("scripts/sbom")
            page.run("flumeng node list", again=True)
        finally:
            units.stop_all()


@pytest.mark.long
def test_change_many_sites(tmp_path: Path) -> None:
    """On the three sites of the tutorial."""
    with sites_job.running(tmp_path) as addresses:
        inventory = tmp_path / "inventory"
        sites_job.write_inventory(inventory, addresses)
        values = {"zk1:2181/flumeng": addresses["dub"], "zk2:2181/flumeng": addresses["fra"]}
        secret = {"FLUMENG_SECRET_FRA_ZOOKEEPER": "push:secret"}
        with HowTo("change-many-sites", tmp_path, secret, values) as page:

            def by_hand(command: str) -> str:
                printed = page.shell.run(command, 240)
                assert page.shell.code == 0, printed
                return printed

            dub = inventory / "sites" / "dub" / "cluster.yaml"
            dub.parent.mkdir()
            page.run("export")
            by_hand("flumeng push apply --yes")
            dub.write_text("settings: {balance: 3}\n")
            by_hand("flumeng push apply --yes")
            dub.write_text("settings: {balance: 5}\n")
            bad = tmp_path / "bad.yaml"
            bad.write_text(BAD)
            by_hand(f"flumeng flow apply {bad} --zk {addresses['dub']}")
            page.run("flumeng push status", code=1, again=True)
            by_hand(f"flumeng flow delete bad --discard --yes --zk {addresses['dub']}")
            page.run("flumeng push rollback --reason", typed="y\n")
            page.run("flumeng push export", inventory="found")
            assert "devices" in page.run("flumeng push render dub")
            page.run("flumeng push plan --out", code=5)
            page.run("flumeng push apply --plan", typed="y\n")
            by_hand(f"flumeng cluster set balance 7 --zk {addresses['dub']}")
            page.run("flumeng push drift", code=3)
            page.run("flumeng push apply --drift", typed="y\n")
            page.run("flumeng push adopt")
            page.run("flumeng push plan --prune", code=5)
            first = re.findall(r"^(\S+)\s+apply", page.run("flumeng push history"), re.MULTILINE)[0]
            page.run("flumeng push rollback --to", typed="y\n", PUSH=first)
            by_hand("flumeng push apply --yes")
            page.run("flumeng push plan")
