"""A node's policy file, through a real node: forbidden flows fail there with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Store, tree
from tests.testkit.ingest_worker import flow_text
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths

FLUMENG = Path(sys.executable).with_name("flumeng")


def node_run(hosts: str, data: Path, policy: Path) -> list[str]:
    where = ["--zk", hosts, "--data", str(data), "--name", "n", "--role", "ingest"]
    return [str(FLUMENG), "node", "run", *where, "--policy", str(policy)]


def test_flow_beyond_the_policy_fails_with_the_reason_and_others_run(
    store: Store, hosts: str, tmp_path: Path
) -> None:
    policy = tmp_path / "node.yaml"
    policy.write_text("commands: [/bin/date]\n")
    tree.init(store)
    for name, command in (("good", '["/bin/date"]'), ("bad", '["/bin/sh", "-c", "date"]')):
        text = flow_text(name, f"exec: {{command: {command}, mode: once}}")
        apply_flow(Operator(store, "test", "", 0.0), text)
    master = subprocess.Popen([sys.executable, "-m", "flumeng.control.master", hosts])
    node = subprocess.Popen(node_run(hosts, tmp_path / "data", policy))

    def told() -> dict[str, tuple[str, str | None]]:
        status = store.read(paths.status("n"))
        found = status.value.tasks if status else {}
        return {key.partition("/")[0]: (task.state, task.error) for key, task in found.items()}

    try:
        wait_for(lambda: told().get("good") == ("running", None))
        reason = "this node's policy file does not allow the command /bin/sh -c date"
        wait_for(lambda: told().get("bad") == ("failed", reason))
    finally:
        for process in (node, master):
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sorces: [tail]\n", 'node.yaml: line 1: sorces: unknown option; did you mean "sources"?'),
        ("paths: [/a]\nlisten: [80]\n", "node.yaml: line 2: listen[0]: expected host:port"),
        (None, "node.yaml: No such file or directory"),
    ],
)
def test_node_with_an_invalid_policy_file_does_not_start(
    tmp_path: Path, text: str | None, said: str
) -> None:
    policy = tmp_path / "node.yaml"
    if text is not None:
        policy.write_text(text)
    command = node_run("127.0.0.1:1", tmp_path / "data", policy)
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert ended.returncode == 2
    assert said in ended.stderr
    assert not (tmp_path / "data").exists()
