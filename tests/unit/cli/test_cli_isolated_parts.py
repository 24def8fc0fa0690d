"""Output of commands about isolated parts, and about flows that others read."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.config import parts_of
from flumeng.control.commands.flows import delete_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

SIMPLE = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks:\n  - noop\n"
WITH = SIMPLE + "  - {files: {path: /data/web}, isolated: true}\n"
READER = "flow: copy\nsources: [flow: {name: web}]\nsinks: [noop]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "web.yaml").write_text(WITH)
    return tmp_path / "web.yaml"


def test_changes_of_isolated_parts_are_reported(shell: Shell, store: FakeStore, file: Path) -> None:
    assert shell.run("flow", "apply", file).stdout == (
        "flow web revision 1\nflow web~files, an isolated part of flow web, revision 1\n"
    )
    rows = shell.json("flow", "list")
    assert [(row["flow"], row["part_of"], row["sinks"]) for row in rows] == [
        ("web", "", ["noop"]),
        ("web~files", "web", ["files"]),
    ]
    assert "isolated part web~files is running\n" in shell.run("flow", "show", "web").stdout
    assert "it is an isolated part of flow web" in shell.run("flow", "show", "web~files").stdout
    assert [row["part_of"] for row in shell.json("status")["flows"]] == ["", "web"]
    said = shell.run("flow", "lag", "web").stdout
    assert "isolated part: flow web~files is running, 0 events behind" in said
    assert shell.run("flow", "pause", "web").stdout == (
        "flow web: collecting stops now, its sources still write to the journals; with its "
        "isolated parts: web~files\n"
    )
    shell.run("flow", "resume", "web")
    assert shell.run("flow", "pause", "web~files").stdout == (
        "flow web~files: collecting stops now, new events wait in the journals of flow web\n"
    )
    store.write(ack_path("web", "web.n1.0.a"), records.Ack(epoch=1, offset=70), ABSENT)
    file.write_text(SIMPLE)
    left = (
        "flow web~files is deleted; its sinks lack 70 events that flow web has delivered, for "
        "good\n"
    )
    assert left in shell.run("flow", "apply", file, "--dry-run").stdout
    assert shell.run("flow", "apply", file).stdout == f"flow web revision 2\n{left}"


def test_text_of_an_isolated_part_cannot_be_applied(shell: Shell, file: Path) -> None:
    (text,) = parts_of(WITH).values()
    file.write_text(text)
    for command in ("validate", "apply"):
        result = shell.run("flow", command, file, zk=None if command == "validate" else "zk:1/c")
        assert result.exit_code == 2
        said = f"{file}: flow: web~files is an isolated part: apply its flow web"
        assert said in result.stderr


def test_graph_marks_isolated_parts(shell: Shell, file: Path) -> None:
    said = shell.run("flow", "graph", file, zk=None).stdout
    assert "(isolated: flow web~files)" in said


def test_delete_waits_for_readers_and_for_the_end(
    shell: Shell, store: FakeStore, file: Path
) -> None:
    shell.run("flow", "apply", file)
    (file.parent / "copy.yaml").write_text(READER)
    shell.run("flow", "apply", file.parent / "copy.yaml")
    late = shell.run("flow", "delete", "web", "--wait", "--timeout", "3")
    assert late.exit_code == 1
    assert "- flow web is read by copy: delete those first" in late.stderr
    record = store.read(paths.flow("web"))
    assert record is not None
    assert record.value.state == "running"

    def goes_on() -> None:
        """One step of the operator and the masters, for each sleep of the command."""
        found = store.read(paths.flow("web"))
        if store.exists(paths.flow("copy")):
            delete_flow(Operator(store, "a", "", 0.0), "copy")
            store.remove(paths.cursor("web", "copy"), ANY)
            del store.tree.znodes[str(paths.flow("copy"))]
        elif found and found.value.state == "deleted":
            gone = "web~files" if store.exists(paths.flow("web~files")) else "web"
            del store.tree.znodes[str(paths.flow(gone))]

    shell.meanwhile = goes_on
    done = shell.run("flow", "delete", "web", "--wait")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "flow web is gone")
