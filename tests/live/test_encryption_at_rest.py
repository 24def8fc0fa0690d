"""The traces of a flow with encrypted events on its host: disk, processes and messages.

Real processes, started with umask 000, of a node that only receives.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flumeng.agent.node.data_directory import KEPT
from flumeng.journal.log.encryption import Key
from tests.live.chaos import Cluster, descendants
from tests.testkit.daemons import start_logged
from tests.testkit.files import contents_below, files_below
from tests.testkit.waiting import wait_for

FLUMENG = Path(sys.executable).with_name("flumeng")
KEY, WRONG = "3f" * 31 + "a9", "4e" * 32
TOKEN = "a-token-that-nobody-may-see"
FLOW = """
flow: web
sources: [{generate: {events_per_second: 200}}]
journal: {encryption: {key: "${secret:journal}"}}
sinks: [{http: {url: "http://127.0.0.1:9/", headers: {Authorization: "${secret:token}"}}}]
"""


class Ingesting(Cluster):
    """Its node runs no collector."""

    def start(self, name: str) -> None:
        if name != "node":
            super().start(name)
            return
        more = ["--policy", str(self.folder / "policy.yaml"), "--role", "ingest"]
        self.tops[name] = start_logged(
            self.folder / "node.log", str(FLUMENG), "node", "run", *self.node_arguments(), *more
        )


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    secrets = {name: tmp_path / name for name in ("journal", "token")}
    for name, text in (("journal", KEY), ("token", TOKEN)):
        secrets[name].touch(mode=0o600)
        secrets[name].write_text(text)
    backends = ", ".join(f"{name}: {{file: {file}}}" for name, file in secrets.items())
    (tmp_path / "policy.yaml").write_text(f"secrets: {{{backends}}}")
    monkeypatch.setenv("FLUMENG_SECRET_ELSEWHERE", TOKEN)
    before = os.umask(0)
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))  # restored at the end
    cluster = Ingesting(tmp_path)
    cluster.start_all()
    yield cluster
    cluster.stop()
    resource.setrlimit(resource.RLIMIT_CORE, limits)
    os.umask(before)


def flumeng(cluster: Cluster, *arguments: str) -> str:
    done = subprocess.run(
        [FLUMENG, *arguments, "--zk", cluster.hosts], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def journals(cluster: Cluster) -> list[Path]:
    return sorted(path.parent for path in (cluster.folder / "node/journals").rglob("checkpoint"))


def task(cluster: Cluster) -> dict[str, str]:
    tasks = json.loads(flumeng(cluster, "task", "list", "--json"))
    found: dict[str, str] = next((row for row in tasks if row["kind"] == "ingest"), {})
    return found


def held(cluster: Cluster) -> int:
    return sum(path.stat().st_size for path in files_below(cluster.folder / "node", "*.segment"))


@pytest.mark.long
def test_keys_and_events_appear_in_no_other_file_process_or_output(cluster: Cluster) -> None:
    (cluster.folder / "web.yaml").write_text(FLOW)
    assert "revision 1" in flumeng(cluster, "flow", "apply", str(cluster.folder / "web.yaml"))
    wait_for(lambda: held(cluster) > 50_000, lambda: task(cluster))

    _nothing_is_open_to_others(cluster)
    _no_process_shows_a_secret(cluster)
    _no_file_has_a_secret(cluster)
    commands = ("status --json", "task list --json", "flow show web --json", "schema export")
    shown = [flumeng(cluster, *command.split()) for command in commands]
    (directory,) = journals(cluster)
    environment = {**os.environ, "FLUMENG_SECRET_JOURNAL": KEY}
    dump = [str(FLUMENG), "journal", "dump", str(directory), "--to", "3"]
    locked = subprocess.run(dump, capture_output=True, text=True, check=False)
    assert locked.returncode == 1
    assert f"are encrypted with key {Key.parse(KEY, '').id}" in locked.stderr
    opened = subprocess.run(
        [*dump, "--key", "${secret:journal}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert [json.loads(line)["seq"] for line in opened.stdout.splitlines()] == [0, 1, 2]
    first = json.loads(opened.stdout.splitlines()[0])["body"]
    assert not [
        path for path, content in contents_below(cluster.folder) if first.encode() in content
    ]

    _the_wrong_key_stops_the_source(cluster)
    shown.append(flumeng(cluster, "task", "list", "--json"))
    assert not [text for text in shown if any(secret in text for secret in (KEY, WRONG, TOKEN))]


def _nothing_is_open_to_others(cluster: Cluster) -> None:
    assert {path.name for path in (cluster.folder / "node").iterdir()} <= set(KEPT)
    for kept in ("node", "zookeeper"):
        for parent, _, names in os.walk(cluster.folder / kept):
            assert Path(parent).stat().st_mode & 0o777 == 0o700, parent
            for path in (Path(parent, name) for name in names if name != "server.log"):
                with suppress(FileNotFoundError):  # removed meanwhile; the log is the test's own
                    assert path.stat().st_mode & 0o777 == 0o600, path


def _no_process_shows_a_secret(cluster: Cluster) -> None:
    tops = [process.pid for process in cluster.tops.values()]
    zookeeper = cluster.zookeeper.process
    assert zookeeper is not None
    pids = [*tops, *(pid for top in tops for pid in descendants(top)), zookeeper.pid]
    assert len(pids) >= 4
    for pid in pids:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert KEY.encode() not in words + environment
        assert TOKEN.encode() not in words
        limits = Path(f"/proc/{pid}/limits").read_text()
        (core,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
        if pid not in tops or pid == cluster.tops["node"].pid:
            assert core.split()[4] == "0", (words, core)
    assert TOKEN.encode() not in Path(f"/proc/{zookeeper.pid}/environ").read_bytes()


def _no_file_has_a_secret(cluster: Cluster) -> None:
    for path, content in contents_below(cluster.folder):
        if path.name not in {"journal", "token"}:
            for secret in (KEY, WRONG, TOKEN):
                assert secret.encode() not in content, path
            assert bytes.fromhex(KEY) not in content, path


def _the_wrong_key_stops_the_source(cluster: Cluster) -> None:
    """And nothing is lost or overwritten: with the right one it goes on in the same journal."""
    (cluster.folder / "journal").write_text(WRONG)
    flumeng(cluster, "task", "restart", "web/ingest.n1")
    cluster.kill("ingest")
    wait_for(
        lambda: "which this node lacks" in (task(cluster).get("why") or ""), lambda: task(cluster)
    )
    why = task(cluster)["why"]
    assert f"encrypted with key {Key.parse(KEY, '').id}" in why
    assert "`previous_keys` of the flow's journal.encryption" in why
    before = held(cluster)
    (directory,) = journals(cluster)
    time.sleep(1)
    assert held(cluster) == before
    _no_file_has_a_secret(cluster)
    (cluster.folder / "journal").write_text(KEY)
    wait_for(lambda: held(cluster) > before + 1000, lambda: task(cluster))
    assert journals(cluster) == [directory]
