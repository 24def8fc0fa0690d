"""Flows that would get out of their bounds, through a real node: each fails by name, others run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from flumeng.agent.node.crash_suspects import ENDS
from flumeng.control.commands.flows import apply_flows
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.tasks import restart_task
from flumeng.control.zookeeper import Store, tree
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths
from zkschema.records import TaskStatus

pytestmark = pytest.mark.long

FLUMENG = Path(sys.executable).with_name("flumeng")
TASK = "bad/collect.0"
TEXT = """flow: {name}
sources:
  - generate: {{events_per_second: 200}}
filters:
  - select: [ts, host, "{expression}"]
sinks:
  - files: {{path: "{path}"}}
batch: {{seconds: 0.5}}
"""


class Host:
    def __init__(self, store: Store, hosts: str, folder: Path) -> None:
        self.store, self.folder, self.data = store, folder, folder / "data"
        policy = folder / "node.yaml"
        policy.write_text(f"outputs: [{folder}/lake]\n")
        where = ["--zk", hosts, "--data", str(self.data), "--name", "n"]
        command = [str(FLUMENG), "node", "run", *where, "--policy", str(policy)]
        self.node = subprocess.Popen(command)
        self.master = subprocess.Popen([sys.executable, "-m", "flumeng.control.master", hosts])

    def apply(self, name: str, expression: str = "upper(host) AS h", path: str = "lake") -> None:
        """Write the flow into ZooKeeper without the checks of the command line."""
        text = TEXT.format(name=name, expression=expression, path=self.folder / path / name)
        list(apply_flows(Operator(self.store, "test", "", 0.0), {name: text}))

    def tasks(self) -> dict[str, TaskStatus]:
        status = self.store.read(paths.status("n"))
        return dict(status.value.tasks) if status else {}

    def failure(self, key: str) -> str:
        task = self.tasks().get(key)
        return (task.error or "") if task and task.state == "failed" else ""

    def files(self, name: str) -> int:
        return len(list((self.folder / "lake" / name).glob("part-*")))

    def collector(self) -> int:
        for pid in Path(f"/proc/{self.node.pid}/task/{self.node.pid}/children").read_text().split():
            with suppress(OSError):
                if b"flumeng.agent.collector" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
        return 0

    def has_another_collector(self, pid: int) -> bool:
        return self.collector() not in (0, pid)

    def kill_collector_in_a_job_of(self, flow: str) -> int:
        """Kill the collector while such a job runs; returns its former pid."""

        def killed() -> int:
            for file in (self.data / "jobs").glob("*"):
                with suppress(OSError):
                    if f'"{flow}"' in file.read_text() and (pid := self.collector()):
                        os.kill(pid, signal.SIGKILL)
                        return pid
            return 0

        return wait_for(killed, f"no job of {flow}", pause_seconds=0.005)

    def close(self) -> None:
        for process in (self.node, self.master):
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)


@pytest.fixture
def host(store: Store, hosts: str, tmp_path: Path) -> Iterator[Host]:
    tree.init(store)
    host = Host(store, hosts, tmp_path)
    yield host
    host.close()


def test_node_refuses_hostile_flows_by_name_and_runs_others(host: Host) -> None:
    (host.folder / "secret.log").write_text("hunter2\n")
    leak = f"(SELECT first(value) FROM text.`{host.folder}/secret.log`) AS leak"
    host.apply("leak", leak)
    host.apply("jvm", "java_method('java.lang.System', 'exit', 3) AS x")
    host.apply("huge", "repeat(host, 1000000000) AS x")
    host.apply("outside", path="elsewhere")
    host.apply("good")
    wait_for(lambda: "not allowed in expressions" in host.failure("leak/collect.0"))
    wait_for(lambda: "java_method is not allowed" in host.failure("jvm/collect.0"))
    wait_for(lambda: "repeat is not allowed" in host.failure("huge/collect.0"))
    wait_for(lambda: "does not allow to write to" in host.failure("outside/collect.0"))
    wait_for(lambda: host.files("good"))
    assert not (host.folder / "elsewhere").exists()


def test_flow_that_crashes_the_collector_is_isolated_by_name(host: Host) -> None:
    host.apply("good")
    host.apply("bad")
    for _ in range(ENDS):
        pid = host.kill_collector_in_a_job_of("bad")
        wait_for(partial(host.has_another_collector, pid))
    wait_for(lambda: "set aside: the collector ended" in host.failure(TASK))
    before = host.files("good")
    wait_for(lambda: host.files("good") > before)
    assert host.tasks()["good/collect.0"].error is None
    restart_task(Operator(host.store, "test", "", 0.0), TASK)
    before = host.files("bad")
    wait_for(lambda: host.files("bad") > before)
    assert host.failure(TASK) == ""
