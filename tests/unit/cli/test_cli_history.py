"""Flows over time: their revisions, going back, and their desired states. On a fake store."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest

from flumeng.control.commands.flows import rollback_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import ConflictError
from tests.testkit.command_line import NOON, Shell
from tests.testkit.scripted_store import ScriptedStore, concerns, once
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.records import Record

R = TypeVar("R", bound=Record)
FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"


@pytest.fixture
def shell(store: FakeStore, tmp_path: Path) -> Shell:
    """Flow web with revisions 1, 2 and 3."""
    shell = Shell(store.tree)
    for number, text in enumerate((FLOW, FLOW + "# two\n", FLOW + "# three\n"), 1):
        (tmp_path / "web.yaml").write_text(text)
        shell.run("flow", "apply", tmp_path / "web.yaml", "--reason", f"try {number}")
    return shell


def flow(store: FakeStore) -> records.Flow:
    found = store.read(paths.flow("web"))
    assert found is not None
    return found.value


def commands(store: FakeStore) -> set[tuple[str, str]]:
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    return {(entry.value.command, entry.value.reason) for entry in entries if entry}


# -- history and diff


def test_history_lists_author_and_reason_of_each_revision(shell: Shell) -> None:
    assert shell.run("flow", "history", "web").stdout == (
        "REVISION\tCURRENT\tTIME (UTC)\tAUTHOR\tREASON\n"
        "1\tno\t2023-11-14 22:13:20\tann@ops\ttry 1\n"
        "2\tno\t2023-11-14 22:13:20\tann@ops\ttry 2\n"
        "3\tyes\t2023-11-14 22:13:20\tann@ops\ttry 3\n"
    )
    assert shell.json("flow", "history", "web")[2] == {
        "revision": 3, "author": "ann@ops", "reason": "try 3", "time": NOON, "current": True,
        "deleted": "", "text": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "old", "new", "lines"),
    [
        ((), 2, 3, ["-# two", "+# three"]),
        ((1,), 1, 3, ["+# three"]),
        ((3, 2), 3, 2, ["-# three", "+# two"]),
    ],
)
def test_diff_compares_the_texts_of_two_revisions(
    shell: Shell, numbers: tuple[int, ...], old: int, new: int, lines: list[str]
) -> None:
    shown = shell.run("flow", "diff", "web", *numbers).stdout.splitlines()
    assert shown[:2] == [f"--- web revision {old}", f"+++ web revision {new}"]
    assert [line for line in shown[3:] if line[0] in "+-"] == lines
    as_json = shell.json("flow", "diff", "web", *numbers)
    assert (as_json["old"], as_json["new"]) == (old, new)


def test_diff_of_equal_texts_reports_no_difference(shell: Shell) -> None:
    shown = shell.run("flow", "diff", "web", 2, 2).stdout
    assert shown == "revisions 2 and 2 of flow web have the same text\n"


def test_the_revision_before_the_tenth_is_the_ninth(shell: Shell, tmp_path: Path) -> None:
    """Numbers are compared as numbers, not as names."""
    for number in range(4, 11):
        (tmp_path / "web.yaml").write_text(f"{FLOW}# {number}\n")
        shell.run("flow", "apply", tmp_path / "web.yaml")
    assert shell.json("flow", "diff", "web")["old"] == 9
    assert [row["revision"] for row in shell.json("flow", "history", "web")] == [*range(1, 11)]


def test_revision_that_is_not_kept_is_wrong_input(shell: Shell, tmp_path: Path) -> None:
    for words in (("diff", "web", 7), ("rollback", "web", 7)):
        result = shell.run("flow", *words)
        assert (result.exit_code, result.stderr) == (
            2, "flumeng: flow web has no revision 7: those from 1 to 3 are kept\n",
        )  # fmt: skip
    (tmp_path / "b.yaml").write_text(FLOW.replace("web", "b"))
    shell.run("flow", "apply", tmp_path / "b.yaml")
    assert "nothing to compare" in shell.run("flow", "diff", "b").stderr
    assert shell.run("flow", "history", "wbe").exit_code == 2


def test_flow_without_any_text_refers_to_schema_verify(shell: Shell, store: FakeStore) -> None:
    """As while it is being removed."""
    for number in store.children(paths.revisions("web")):
        store.remove(paths.revision("web", number), ANY)
    for words in (("diff", "web", 1), ("rollback", "web", 1)):
        refused = shell.run("flow", *words)
        assert refused.exit_code == 2
        assert "none is kept: see `flumeng schema verify`" in refused.stderr


# -- rollback


@pytest.mark.usefixtures("shell")
def test_rollback_does_not_bring_back_a_flow_that_goes_meanwhile(store: FakeStore) -> None:
    """The last masters' step of its deletion lies between two reads."""

    def remove() -> None:
        for path in [path for path in store.tree.znodes if "/web" in path]:
            del store.tree.znodes[path]

    going = ScriptedStore(store.tree, after_read=once(remove, concerns(paths.revision)))
    with pytest.raises(ConflictError, match="web was deleted meanwhile"):
        rollback_flow(Operator(going, "a", "", NOON), "web", 1)
    assert "web" not in store.children(paths.flows())


def test_rollback_is_a_new_revision_with_the_old_text(shell: Shell, store: FakeStore) -> None:
    result = shell.run("flow", "rollback", "web", 1, "--reason", "three was bad")
    assert (result.exit_code, result.stdout) == (0, "flow web revision 4\n")
    revision = store.read(paths.revision("web", "4"))
    assert revision is not None
    assert (revision.value.text, revision.value.reason) == (
        FLOW, "rollback to revision 1: three was bad",
    )  # fmt: skip
    assert flow(store) == records.Flow(revision=4)
    assert store.children(paths.revisions("web")) == ["1", "2", "3", "4"]
    said = ("flow rollback web 1 (revision 4)", "rollback to revision 1: three was bad")
    assert said in commands(store)
    again = shell.run("flow", "rollback", "web", 1)
    assert again.stdout == "flow web revision 4 (unchanged)\n"


def test_rollback_dry_run_shows_the_change_and_writes_nothing(
    shell: Shell, store: FakeStore
) -> None:
    before = dict(store.dump())
    shown = shell.run("flow", "rollback", "web", 1, "--dry-run")
    assert shown.exit_code == 0, shown.stderr
    assert "-# three" in shown.stdout
    (move,) = shell.json("flow", "rollback", "web", 1, "--dry-run")["moves"]
    assert (move["task"], move["what"]) == ("web/collect.0", "takes revision 4")
    assert shell.run("flow", "rollback", "web", 7, "--dry-run").exit_code == 2
    assert shell.run("flow", "rollback", "web", 1, "--dry-run", "--if-revision", 2).exit_code == 3
    assert store.dump() == before


def test_text_that_this_version_cannot_read_is_not_restored(shell: Shell, store: FakeStore) -> None:
    old = records.Revision(text="flow: web\n", author="a", reason="", time=NOON)
    store.write(paths.revision("web", "1"), old, ANY)
    assert shell.run("flow", "rollback", "web", 1).exit_code == 2
    assert flow(store).revision == 3


# -- pause, resume, stop


@pytest.mark.parametrize(
    ("command", "state"), [("pause", "suspended"), ("stop", "stopped"), ("resume", "running")]
)
def test_state_is_changed_once(shell: Shell, store: FakeStore, command: str, state: str) -> None:
    other = records.Flow(revision=3, state="stopped" if command == "resume" else "running")
    store.write(paths.flow("web"), other, ANY)
    done = shell.run("flow", command, "web", "--reason", "why not")
    assert (done.exit_code, done.stdout.startswith("flow web: ")) == (0, True)
    assert flow(store) == records.Flow(revision=3, state=state)
    assert (f"flow {command} web", "why not") in commands(store)
    entries = len(store.children(paths.audits()))
    assert shell.run("flow", command, "web").stdout == f"flow web is {state} already\n"
    assert len(store.children(paths.audits())) == entries


def test_a_paused_flow_that_is_applied_stays_paused(shell: Shell, store: FakeStore) -> None:
    shell.run("flow", "pause", "web")
    shell.run("flow", "rollback", "web", 1)
    assert flow(store) == records.Flow(revision=4, state="suspended")


def test_a_flow_that_is_being_deleted_stays_deleted(shell: Shell, store: FakeStore) -> None:
    shell.run("flow", "delete", "web")
    for words in (("pause",), ("resume",), ("stop",), ("rollback", 1)):
        result = shell.run("flow", words[0], "web", *words[1:])
        assert result.exit_code == 3, words
        assert "is being deleted" in result.stderr
    assert flow(store).state == "deleted"


@pytest.mark.parametrize(
    "words", [("pause",), ("resume",), ("stop",), ("delete",), ("rollback", 1)], ids=lambda w: w[0]
)
def test_every_change_accepts_the_expected_revision(
    shell: Shell, store: FakeStore, words: tuple[str, ...]
) -> None:
    if words[0] == "resume":
        store.write(paths.flow("web"), records.Flow(revision=3, state="stopped"), ANY)
    before = store.dump()
    stale = shell.run("flow", words[0], "web", *words[1:], "--if-revision", 2)
    assert (stale.exit_code, store.dump()) == (3, before)
    assert shell.run("flow", words[0], "web", *words[1:], "--if-revision", 3).exit_code == 0
    assert store.dump() != before


def test_paused_flow_is_healthy_unless_a_source_has_a_problem(
    shell: Shell, store: FakeStore
) -> None:
    shell.run("flow", "pause", "web")

    def plan(kind: str) -> records.Plan:
        waiting = records.PlannedTask(kind=kind, node=None, epoch=0, state="waiting", why="no node")
        return records.Plan(tasks={"t": waiting})

    def said() -> list[str]:
        return [c["what"] for c in shell.json("status")["causes"] if "web" in c["what"]]

    assert said() == []
    store.write(paths.plan("web"), plan("collect"), ABSENT)
    assert said() == []
    store.write(paths.plan("web"), plan("ingest"), ANY)
    assert said() == ["task web/t is waiting: no node"]
