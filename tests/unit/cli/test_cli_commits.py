"""``flumeng ack commits`` and ``drop``: commits that are not finished yet, or never can be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flumeng.agent.collector.commit import Commits
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT
from flumeng.platform.errors import CorruptError
from tests.testkit.cluster import new_cluster
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
SIGN = ("ann", "", NOON)
NAME = "collect.0@u1"


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    apply_flow(Operator(store, *SIGN), FLOW)
    return store


@pytest.fixture
def staged(store: FakeStore, tmp_path: Path) -> Path:
    """A decided commit of two files, both staged; gives its staging directory."""
    staging = tmp_path / "_flumeng" / "web.n1.0.aa.3.u"
    staging.mkdir(parents=True)
    files = []
    for number in range(2):
        (staging / f"part-{number}").write_text("x")
        files.append((str(staging / f"part-{number}"), str(tmp_path / f"{number}.parquet")))
    record = records.Commit(epoch=3, staging=(str(staging),), files=tuple(files))
    store.write(paths.commit("web", NAME), record, ABSENT)
    return staging


def test_commit_with_missing_files_is_given_up_by_the_advised_command(
    shell: Shell, store: FakeStore, staged: Path, tmp_path: Path
) -> None:
    (staged / "part-0").rename(tmp_path / "0.parquet")
    shutil.rmtree(staged)
    collector = Commits(store, "web", "collect.0")
    with pytest.raises(CorruptError) as stuck:
        collector.recover([])
    advice = str(stuck.value).rpartition("`flumeng ")[2].rstrip("`")
    assert advice == f"ack drop web {NAME}"
    shown = shell.run("ack", "commits").stdout
    assert f"web\t{NAME}\t2\t0\t1\t" in shown
    (row,) = shell.json("ack", "commits", "web")
    assert row["missing"] == [str(tmp_path / "1.parquet")]
    asked = shell.run(*advice.split(), typed="n\n")
    assert (asked.exit_code, store.children(paths.commits("web"))) == (1, [NAME])
    assert f"{tmp_path / '1.parquet'}\nThe events in these files are lost" in asked.stderr
    done = shell.run(*advice.split(), "--yes", "--reason", "disk was replaced")
    assert (done.exit_code, done.stdout) == (0, f"given up: {tmp_path / '1.parquet'}\n")
    collector.recover([])
    assert (tmp_path / "0.parquet").exists()
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    told = {(entry.value.command, entry.value.reason) for entry in entries if entry}
    assert (f"{advice}: gave up 1 files", "disk was replaced") in told


def test_commit_that_a_collector_can_finish_is_not_dropped(
    shell: Shell, store: FakeStore, staged: Path
) -> None:
    """Staged files are removed once no record names them: they would be lost."""
    refused = shell.run("ack", "drop", "web", NAME, "--yes")
    assert (refused.exit_code, "still staged" in refused.stderr) == (3, True)
    (staged / "part-1").unlink()
    refused = shell.run("ack", "drop", "web", NAME, "--yes")
    assert (refused.exit_code, "still staged" in refused.stderr) == (3, True)
    assert store.children(paths.commits("web")) == [NAME]


def test_commit_whose_files_are_in_place_is_left_to_a_collector(
    shell: Shell, store: FakeStore, staged: Path, tmp_path: Path
) -> None:
    for number in range(2):
        (staged / f"part-{number}").rename(tmp_path / f"{number}.parquet")
    refused = shell.run("ack", "drop", "web", NAME, "--yes")
    assert (refused.exit_code, "a collector finishes it automatically" in refused.stderr) == (
        3,
        True,
    )
    assert store.children(paths.commits("web")) == [NAME]


def test_unreadable_commit_is_shown_and_can_be_dropped(
    shell: Shell, store: FakeStore, staged: Path
) -> None:
    store.tree.znodes[f"/commits/web/{NAME}"].data = b"damaged"
    assert "not JSON" in shell.run("ack", "commits").stdout
    assert shell.run("ack", "drop", "web", NAME, "--yes").exit_code == 0
    assert store.children(paths.commits("web")) == []
    assert staged.exists(), "its files are left to a person"


@pytest.mark.usefixtures("staged")
def test_commit_of_a_newer_version_is_not_dropped(shell: Shell, store: FakeStore) -> None:
    store.tree.znodes[f"/commits/web/{NAME}"].data = b'{"v":2,"epoch":3,"staging":[],"files":[]}'
    refused = shell.run("ack", "drop", "web", NAME, "--yes")
    assert (refused.exit_code, "can finish it" in refused.stderr) == (3, True)
    assert store.children(paths.commits("web")) == [NAME]


def test_nothing_is_dropped_where_the_storage_is_not_mounted(
    shell: Shell, store: FakeStore, staged: Path
) -> None:
    """All files seem to be missing on a host on which the sink's storage is not mounted."""
    shutil.rmtree(staged.parent)
    refused = shell.run("ack", "drop", "web", NAME, "--yes")
    assert (refused.exit_code, f"does not see {staged.parent}" in refused.stderr) == (3, True)
    assert store.children(paths.commits("web")) == [NAME]


def test_unknown_commit_is_wrong_input(shell: Shell) -> None:
    assert shell.run("ack", "drop", "web", "x@y", "--yes").exit_code == 2
    assert shell.run("ack", "commits", "wbe").exit_code == 2
    assert shell.json("ack", "commits") == []
