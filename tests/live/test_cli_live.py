"""The command line as a process, against a real ZooKeeper."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from kazoo.client import KazooClient

from flumeng.agent.standalone.embedded import free_port
from flumeng.control.commands.cluster import migrate_cluster
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.nodes import decommission_node
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Store, Version, Write, tree
from flumeng.platform.errors import ConflictError
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import PATIENCE_SECONDS
from zkschema import paths, records, table
from zkschema.migrations import Change, Delete, Migration, Set

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"


def flumeng(*words: object, zk: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "FLUMENG_ZK": zk},
        timeout=120,
        check=False,
    )


def own_seconds() -> float:
    """Seconds for a command without ZooKeeper: on a busy machine starting a program takes long."""
    start = time.monotonic()
    assert flumeng("--help").returncode == 0
    return time.monotonic() - start


def test_flow_is_made_changed_and_deleted(hosts: str, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(FLOW)
    assert flumeng("flow", "apply", file, zk=hosts).returncode == 2
    assert flumeng("schema", "init", zk=hosts).returncode == 0

    applied = flumeng("flow", "apply", file, "--reason", "try", zk=hosts)
    assert (applied.returncode, applied.stdout) == (0, "flow web revision 1\n"), applied.stderr
    file.write_text(FLOW + "# again\n")
    assert flumeng("flow", "apply", file, zk=hosts).stdout == "flow web revision 2\n"
    stale = flumeng("flow", "apply", file, "--if-revision", 1, zk=hosts)
    assert stale.returncode == 3

    (row,) = json.loads(flumeng("flow", "list", "--json", zk=hosts).stdout)
    assert (row["flow"], row["revision"], row["state"]) == ("web", 2, "running")
    shown = json.loads(flumeng("flow", "show", "web", "--json", zk=hosts).stdout)
    assert shown["text"] == FLOW + "# again\n"

    status = flumeng("status", "--json", zk=hosts)
    assert status.returncode == 1
    assert json.loads(status.stdout)["health"] == "degraded"
    for command in (("node", "list"), ("ack", "list"), ("journal", "list")):
        assert json.loads(flumeng(*command, "--json", zk=hosts).stdout) == []

    assert flumeng("flow", "delete", "web", zk=hosts).returncode == 0
    (row,) = json.loads(flumeng("flow", "list", "--json", zk=hosts).stdout)
    assert row["state"] == "deleted"
    assert flumeng("schema", "verify", zk=hosts).returncode == 0


def test_live_node_is_not_decommissioned(hosts: str, store: Store) -> None:
    """ZooKeeper itself refuses the transaction that removes the node of a live process."""
    tree.init(store)
    store.write(paths.node("n1"), records.Node(uuid="u", roles=("ingest",)), ABSENT)
    live = records.LiveNode(uuid="u", incarnation="i", pid=1, version="0", since=0.0)

    class Late:
        """The node comes live after it was looked at and before the transaction."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def commit(self, writes: Sequence[Write]) -> list[Version]:
            store.write(paths.live_node("n1"), live, ABSENT)
            return store.commit(writes)

    with pytest.raises(ConflictError, match="/live/nodes/n1 exists already"):
        decommission_node(Operator(cast(Store, Late()), "a", "", 0.0), "n1")
    assert flumeng("node", "decommission", "n1", zk=hosts).returncode == 3
    store.remove(paths.live_node("n1"), ANY)
    done = flumeng("node", "decommission", "n1", zk=hosts)
    assert (done.returncode, done.stdout) == (0, "node n1 is gone\n"), done.stderr
    assert store.children(paths.nodes()) == store.children(paths.live_nodes()) == []


def test_a_cluster_moves_to_another_chroot(hosts: str, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(FLOW)
    flumeng("schema", "init", zk=hosts)
    flumeng("flow", "apply", file, zk=hosts)
    exported = flumeng("schema", "export", zk=hosts)
    (tmp_path / "all.json").write_text(exported.stdout)
    done = flumeng("schema", "import", tmp_path / "all.json", zk=f"{hosts}-new")
    assert (done.returncode, done.stderr) == (0, "")
    again = flumeng("schema", "export", zk=f"{hosts}-new")
    old, new = json.loads(exported.stdout)["znodes"], json.loads(again.stdout)["znodes"]
    assert new.pop("/schema")["generation"] > old.pop("/schema").get("generation", 0)
    assert old.items() <= new.items()
    assert flumeng("schema", "verify", zk=f"{hosts}-new").returncode == 0
    assert flumeng("schema", "import", tmp_path / "all.json", zk=hosts).returncode == 2


def test_a_migration_on_a_real_server(store: Store) -> None:
    """A folder becomes a record, a record goes, and the version is raised in one transaction."""
    tree.init(store)
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    ack = paths.ack("web", "main", "p")
    store.write(ack, records.Ack(epoch=1, offset=7), ABSENT)
    cursor = str(paths.cursor("web", "main"))
    changes: list[Change] = [Set(cursor, {"v": 2, "acks": {"p": 7}}), Delete(str(ack))]
    migration = Migration(
        table.VERSION, "example", lambda before: changes if str(ack) in before else []
    )
    migrate_cluster(Operator(store, "a", "", 0.0), migration)
    found = store.dump()
    assert json.loads(found[cursor]) == {"v": 2, "acks": {"p": 7}}
    assert str(ack) not in found
    assert json.loads(found["/schema"])["version"] == table.VERSION + 1


def test_damaged_tree_is_repaired_on_a_real_server(
    hosts: str, store: Store, tmp_path: Path
) -> None:
    """Orphan, dangling reference, stale ephemeral, oversize and damaged value: all at once."""
    file = tmp_path / "web.yaml"
    file.write_text(FLOW)
    flumeng("schema", "init", zk=hosts)
    flumeng("flow", "apply", file, zk=hosts)
    flumeng("flow", "pause", "web", zk=hosts)
    store.write(paths.node("n1"), records.Node(uuid="u", roles=("ingest",)), ABSENT)
    store.write(paths.ack("web", "main", "gone"), records.Ack(epoch=7, offset=1), ABSENT)
    store.write(paths.plan("web"), records.Plan(epoch=7), ABSENT)
    spoilt = {
        paths.live_master("m0"): b'{"v":1,"host":"h","pid":1,"version":"0","since":0.0}',
        paths.status("n1"): b'{"v":1,"assignment_version":0,"pad":"' + b"x" * 600_000 + b'"}',
        paths.plan("web"): b"{",
    }
    client = KazooClient(hosts=hosts)
    client.start()
    try:
        for path, data in spoilt.items():
            if client.exists(str(path)):
                client.set(str(path), data)
            else:
                client.create(str(path), data)
        client.delete(str(paths.revision("web", "1")))
        client.create(str(paths.revision("web", "2")), b"{}")
    finally:
        client.stop()
        client.close()
    found = flumeng("schema", "verify", "--json", zk=hosts)
    assert found.returncode == 1
    wrong = {problem["path"] for problem in json.loads(found.stdout)}
    told = {str(path) for path in spoilt}
    assert wrong == told | {
        "/acks/web/main/gone", "/flows/web", "/flows/web/revisions/2",
    }  # fmt: skip
    fixed = flumeng("schema", "verify", "--fix", "--yes", "--reason", "tidy", zk=hosts)
    assert (fixed.returncode, "5 of 5 repairs done" in fixed.stderr) == (1, True), fixed.stderr
    flumeng("flow", "apply", file, zk=hosts)
    clean = flumeng("schema", "verify", zk=hosts)
    assert (clean.returncode, clean.stderr) == (0, ""), clean.stdout
    plan = store.read(paths.plan("web"))
    assert plan is not None
    assert plan.value.epoch > 7


def test_shell_on_a_terminal_completes_names_and_keeps_a_history(
    hosts: str, tmp_path: Path
) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(FLOW)
    flumeng("schema", "init", zk=hosts)
    flumeng("flow", "apply", file, zk=hosts)
    mine, theirs = pty.openpty()
    # a background job of a script ignores Ctrl-C, and so do its children
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "shell"],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={
            **os.environ, "FLUMENG_ZK": hosts, "XDG_CONFIG_HOME": str(tmp_path),
            "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1",
        },
    )  # fmt: skip
    signal.signal(signal.SIGINT, inherited)
    os.close(theirs)
    terminal = Terminal(mine)
    try:
        terminal.until("flumeng>")
        deadline = time.monotonic() + PATIENCE_SECONDS
        os.write(mine, b"flow show w")
        while not terminal.shows("web", 2.0):  # in the menu, once the names have come
            assert time.monotonic() < deadline, "no name is completed"
            os.write(mine, b"\x7fw")
        os.write(mine, b"\t")
        terminal.until("web")
        os.write(mine, b"\n")
        terminal.until("flow web is running")
        terminal.until("flumeng>")
        os.write(mine, b"top\n")
        terminal.until("no master is live")
        process.send_signal(signal.SIGINT)
        terminal.until("flumeng>")
        os.write(mine, b"\x04")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(mine)
    assert "+flow show web" in (tmp_path / "flumeng" / "history").read_text()


class Terminal:
    """The output of a process on its terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = ""

    def until(self, text: str) -> None:
        """Read until ``text`` appears; the output behind it is kept for the next call."""
        assert self.shows(text, PATIENCE_SECONDS), f"{text!r} did not come: {self._seen!r}"

    def shows(self, text: str, seconds: float) -> bool:
        """The same; false when it does not come in time."""
        deadline = time.monotonic() + seconds
        while text not in self._seen:
            if time.monotonic() > deadline:
                return False
            if select.select([self._descriptor], [], [], 0.2)[0]:
                self._seen += os.read(self._descriptor, 65536).decode(errors="replace")
        self._seen = self._seen.partition(text)[2]
        return True


@pytest.mark.parametrize("frozen", [False, True], ids=["away", "frozen"])
def test_completion_in_bash_does_not_wait_for_zookeeper(tmp_path: Path, frozen: bool) -> None:
    server = RealZooKeeper(tmp_path)
    if frozen:
        server.start()
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
    own = own_seconds()
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cli.main"],
            env={
                **os.environ,
                "FLUMENG_ZK": f"{server.address}/none",
                "_FLUMENG_COMPLETE": "bash_complete",
                "COMP_WORDS": "flumeng flow show ",
                "COMP_CWORD": "3",
            },
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        if frozen:
            server.kill()
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert time.monotonic() - start < 10 + 10 * own


def test_unreachable_zookeeper_is_reported_within_ten_seconds() -> None:
    own = own_seconds()
    start = time.monotonic()
    result = flumeng("flow", "list", zk=f"127.0.0.1:{free_port()}/none")
    assert time.monotonic() - start < 10 + 10 * own
    assert (result.returncode, result.stdout) == (4, "")
    assert len(result.stderr.splitlines()) == 1
    assert "did not answer" in result.stderr


@pytest.mark.long
def test_frozen_zookeeper_is_reported_within_ten_seconds(tmp_path: Path) -> None:
    """It accepts connections and answers nothing: as bad as none."""
    server = RealZooKeeper(tmp_path)
    server.start()
    assert server.process is not None
    try:
        server.process.send_signal(signal.SIGSTOP)
        own = own_seconds()
        start = time.monotonic()
        result = flumeng("status", zk=f"{server.address}/none")
        assert time.monotonic() - start < 10 + 10 * own
        assert (result.returncode, len(result.stderr.splitlines())) == (4, 1), result.stderr
    finally:
        server.kill()


@pytest.mark.parametrize("words", ["host:port/c", "/chroot"])
def test_malformed_zookeeper_address_is_wrong_input(words: str) -> None:
    result = flumeng("flow", "list", zk=words)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
