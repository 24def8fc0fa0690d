"""Commands that change a cluster, and their failures: on a fake store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flumeng.control.commands.revisions import KEEP_REVISIONS
from flumeng.control.zookeeper import ANY, Store
from tests.testkit.cluster import add_journal
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths, records
from zkschema.verify import verify

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"


@pytest.fixture
def write_flow(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = FLOW, name: str = "web.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


# -- exit codes and errors


def test_each_kind_of_error_has_its_exit_code_and_one_sentence(
    shell: Shell, write_flow: Callable[..., Path]
) -> None:
    wrong = shell.run("flow", "show", "nothing")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert wrong.stderr == 'flumeng: there is no flow "nothing"; there are no flows yet\n'
    conflict = shell.run("flow", "apply", write_flow(), "--if-revision", 7)
    assert conflict.exit_code == 3
    assert conflict.stderr == (
        "flumeng: flow web does not exist, not at revision 7: look at it again\n"
    )
    shell.cut = True
    away = shell.run("flow", "list")
    assert away.exit_code == 4
    assert away.stderr == "flumeng: ZooKeeper at zk:1/c did not answer\n"


def test_command_without_a_cluster_explains_how_to_name_one(shell: Shell) -> None:
    result = shell.run("flow", "list", zk=None)
    assert result.exit_code == 2
    assert "--zk" in result.stderr
    assert "FLUMENG_ZK" in result.stderr


def test_a_chroot_without_a_cluster_is_wrong_input() -> None:
    shell = Shell(FakeTree())
    for command in ("flow list", "node list", "ack list", "journal list", "status"):
        result = shell.run(*command.split())
        assert result.exit_code == 2, command
        assert "flumeng schema init" in result.stderr


def test_sessions_are_closed(shell: Shell, store: FakeStore) -> None:
    shell.run("flow", "list")
    shell.run("flow", "show", "nothing")
    assert store.tree.stores == [store]


# -- flow validate


def test_validate_prints_the_guarantees_of_a_valid_flow(
    shell: Shell, write_flow: Callable[..., Path]
) -> None:
    file = write_flow()
    result = shell.run("flow", "validate", file, zk=None)
    first, *promised = result.stdout.splitlines()
    assert (result.exit_code, first) == (0, f"{file}: flow web is valid")
    assert promised == [
        "  tail: each line of a file is taken once, except lines truncated or deleted unread.",
        "  An accepted event survives a killed process and a power cut (durability disk).",
        "  An event that survives reaches the sinks once or, after a failure, more than once "
        "(delivery at-least-once).",
    ]
    assert shell.json("flow", "validate", file) == []


def test_validate_reports_all_problems_of_all_files(
    shell: Shell, write_flow: Callable[..., Path], tmp_path: Path
) -> None:
    one = write_flow("flow: A\nsources: [tail: {paths: [/a]}]\nsinks: [nop]\n", "one.yaml")
    two = write_flow("flow: b\nsinks: [noop]\n", "two.yaml")
    binary = tmp_path / "three.yaml"
    binary.write_bytes(b"flow: c\n\xff")
    missing = tmp_path / "four.yaml"
    result = shell.run("flow", "validate", one, two, binary, missing, zk=None)
    assert (result.exit_code, result.stdout) == (2, "")
    header, *lines = result.stderr.splitlines()
    assert header == "flumeng: 5 problems in flow files:"
    assert lines[1] == f'{one}:3: sinks[0]: unknown sink "nop"; did you mean "noop"?'
    assert lines[2].startswith(f'{two}:1: missing "sources"')
    assert lines[3:] == [
        f"{binary}:2: is not UTF-8",
        f"{missing}: cannot be read: No such file or directory",
    ]


def test_validate_takes_directories_and_standard_input(shell: Shell, tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "a.test.yaml", "notes.txt"):
        (tmp_path / name).write_text(FLOW.replace("web", name[0]))
    result = shell.run("flow", "validate", tmp_path, "-", zk=None, typed=FLOW)
    assert result.exit_code == 0, result.stderr
    valid = [line for line in result.stdout.splitlines() if line.endswith("is valid")]
    assert valid == [
        f"{tmp_path}/a.yaml: flow a is valid",
        f"{tmp_path}/b.yml: flow b is valid",
        "-: flow web is valid",
    ]


def test_validate_of_a_directory_without_flow_files_is_wrong_input(
    shell: Shell, tmp_path: Path
) -> None:
    result = shell.run("flow", "validate", tmp_path, zk=None)
    assert result.exit_code == 2
    assert f"{tmp_path}: no flow file (.yaml or .yml) is in this directory" in result.stderr


def test_apply_takes_a_directory_and_standard_input(
    shell: Shell, store: FakeStore, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(FLOW.replace("web", "a"))
    assert shell.run("flow", "apply", tmp_path, "-", typed=FLOW).exit_code == 0
    assert sorted(store.children(paths.flows())) == ["a", "web"]


def test_validate_gives_problems_as_json(shell: Shell, write_flow: Callable[..., Path]) -> None:
    file = write_flow("flow: b\nsources: [tail: {paths: [/a]}]\nsinks: []\n")
    result = shell.run("flow", "validate", file, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == [
        {"file": str(file), "line": 3, "path": "sinks", "message": "expected at least one entry"}
    ]


# -- flow apply


def test_apply_writes_a_flow_and_its_revision(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    result = shell.run("flow", "apply", write_flow(), "--reason", "first")
    assert (result.exit_code, result.stdout) == (0, "flow web revision 1\n")
    flow = store.read(paths.flow("web"))
    revision = store.read(paths.revision("web", "1"))
    assert flow is not None
    assert revision is not None
    assert flow.value == records.Flow(revision=1, state="running")
    assert revision.value == records.Revision(
        text=FLOW, author="ann@ops", reason="first", time=NOON
    )
    assert verify(store.dump()) == []


def test_apply_of_the_same_text_changes_nothing(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    before = dict(store.dump())
    result = shell.run("flow", "apply", write_flow())
    assert (result.exit_code, result.stdout) == (0, "flow web revision 1 (unchanged)\n")
    assert store.dump() == before


def test_apply_of_another_text_makes_the_next_revision_and_keeps_the_last(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    result = shell.run("flow", "apply", write_flow(FLOW + "# more\n"), "--if-revision", 1)
    assert result.stdout == "flow web revision 2\n"
    assert store.children(paths.revisions("web")) == ["1", "2"]
    stale = shell.run("flow", "apply", write_flow(FLOW + "# other\n"), "--if-revision", 1)
    assert (stale.exit_code, stale.stderr) == (
        3,
        "flumeng: flow web is at revision 2, not at revision 1: look at it again\n",
    )
    assert store.children(paths.revisions("web")) == ["1", "2"]


def test_the_history_of_a_flow_is_bounded(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    for number in range(KEEP_REVISIONS + 3):
        shell.run("flow", "apply", write_flow(f"{FLOW}# {number}\n"))
    kept = sorted(int(number) for number in store.children(paths.revisions("web")))
    assert kept == list(range(4, KEEP_REVISIONS + 4))


def test_a_problem_in_one_file_keeps_all_from_being_written(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    good, bad = write_flow(), write_flow("flow: b\n", "bad.yaml")
    result = shell.run("flow", "apply", good, bad)
    assert result.exit_code == 2
    assert store.children(paths.flows()) == []


def test_one_flow_in_two_files_is_a_problem(shell: Shell, write_flow: Callable[..., Path]) -> None:
    one, two = write_flow(), write_flow(FLOW + "#\n", "two.yaml")
    result = shell.run("flow", "apply", one, two)
    assert result.stderr == (
        f"flumeng: 1 problem in flow files:\n{two}: flow: flow web is also in {one}\n"
    )


def test_concurrent_change_by_someone_else_is_a_conflict(
    store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    """The compare-and-set, not the check before it, decides which change is refused."""

    class Meddler(Shell):
        def connect(self, hosts: str) -> Store:
            mine = super().connect(hosts)
            commit = mine.commit

            def commit_late(writes: Any) -> Any:
                flow = store.read(paths.flow("web"))
                assert flow is not None
                store.write(paths.flow("web"), replace(flow.value, revision=9), flow.version)
                return commit(writes)

            mine.commit = commit_late  # type: ignore[method-assign]
            return mine

    Shell(store.tree).run("flow", "apply", write_flow())
    result = Meddler(store.tree).run("flow", "apply", write_flow(FLOW + "#\n"))
    assert result.exit_code == 3
    assert result.stderr == "flumeng: znode /flows/web was changed by someone else\n"
    assert store.children(paths.revisions("web")) == ["1"]


def test_if_revision_is_accepted_for_one_file_only(
    shell: Shell, write_flow: Callable[..., Path]
) -> None:
    two = write_flow("flow: b\n", "b.yaml")
    assert shell.run("flow", "apply", write_flow(), two, "--if-revision", 0).exit_code == 2
    assert shell.run("flow", "apply", write_flow(), "--if-revision", 0).exit_code == 0


def test_every_applied_change_is_in_the_audit(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow(), "--reason", "why not")
    shell.run("flow", "delete", "web")
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    told = {(e.value.who, e.value.command, e.value.reason) for e in entries if e}
    assert told == {
        ("ann@ops", "flow apply web (revision 1)", "why not"),
        ("ann@ops", "flow delete web", ""),
    }


# -- flow delete


def test_delete_asks_masters_to_drain(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    result = shell.run("flow", "delete", "web", "--if-revision", 1)
    assert result.exit_code == 0
    assert "fully collected" in result.stdout
    flow = store.read(paths.flow("web"))
    assert flow is not None
    assert (flow.value.state, flow.value.discard) == ("deleted", False)
    again = shell.run("flow", "delete", "web")
    assert (again.exit_code, again.stdout) == (0, "flow web is being deleted already\n")
    applied = shell.run("flow", "apply", write_flow())
    assert (applied.exit_code, applied.stderr) == (
        3,
        "flumeng: flow web is being deleted: apply it again when it is gone\n",
    )


def test_name_is_free_again_when_no_journal_of_the_old_flow_is_left(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    """A node that was away has one: the new flow would deliver events that were to be discarded."""
    add_journal(store, "web.n7.0.a")
    refused = shell.run("flow", "apply", write_flow())
    assert refused.exit_code == 3
    assert "n7 still has journals of a deleted flow web" in refused.stderr
    store.remove(paths.journal("web.n7.0.a"), ANY)
    assert shell.run("flow", "apply", write_flow()).exit_code == 0


def test_discard_asks_first(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    refused = shell.run("flow", "delete", "web", "--discard", typed="n\n")
    assert refused.exit_code == 1
    flow = store.read(paths.flow("web"))
    assert flow is not None
    assert flow.value.state == "running"
    assert shell.run("flow", "delete", "web", "--discard", "--yes").exit_code == 0
    flow = store.read(paths.flow("web"))
    assert flow is not None
    assert (flow.value.state, flow.value.discard) == ("deleted", True)


def test_delete_of_a_misspelt_flow_names_the_nearest(
    shell: Shell, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    result = shell.run("flow", "delete", "wbe")
    assert result.stderr == 'flumeng: there is no flow "wbe"; did you mean "web"?\n'
    assert shell.run("flow", "delete", "we/b").exit_code == 2
