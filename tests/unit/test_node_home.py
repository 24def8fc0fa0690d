"""The node's data directory."""

from __future__ import annotations

import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from flumeng.agent.node.claim import Claim
from flumeng.agent.node.events import Wanted
from flumeng.agent.node.home import FLOWS, REPLICAS, RUN_MARK, Home, KnownNames
from flumeng.platform.errors import UnavailableError, UserError
from zkschema import codec
from zkschema.records import COLLECT, AssignedTask, Assignment


def wanted(tasks: int) -> Wanted:
    assigned = tuple(
        AssignedTask(
            flow="web", task=f"collect.{n}", kind=COLLECT, epoch=n, revision=1, state="assigned"
        )
        for n in range(tasks)
    )
    return Wanted(7, Assignment(tasks=assigned), {("web", 1): "flow: web\nnäme: ✓"})


@pytest.mark.parametrize("tasks", [0, 1, 5000])
def test_the_last_assignment_is_kept(tmp_path: Path, tasks: int) -> None:
    home = Home(tmp_path / "node")
    assert home.kept() is None
    home.keep(wanted(3))
    home.keep(wanted(tasks))
    assert home.kept() == wanted(tasks)


def test_the_largest_one_kept_is_one_that_znodes_hold_packed() -> None:
    assert codec.encode(wanted(5000).assignment).startswith(codec.GZIP_MAGIC)


@pytest.mark.parametrize("name", ["assignment.json", "flows.json"])
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[1]",
        b'"text"',
        b"\xff",
        b'{"version": 1, "assignment": "{}"}',
        b'{"version": 1, "assignment": 5, "texts": []}',
        b'{"version": 1, "assignment": "{\\"v\\": 99}", "texts": []}',
        b'{"generation": "x", "flows": 1}',
    ],
)
def test_a_damaged_file_is_set_aside_and_told_of(tmp_path: Path, name: str, text: bytes) -> None:
    home = Home(tmp_path)
    (tmp_path / name).write_bytes(text)
    assert home.kept() is None
    assert home.known(FLOWS) == KnownNames()
    assert (tmp_path / f"{name}.damaged").read_bytes() == text
    assert [*home.problems] == [name]
    home.keep(wanted(1))
    home.keep_known(FLOWS, KnownNames(2, frozenset({"web"})))
    assert home.problems == {}
    assert home.kept() == wanted(1)
    assert home.known(FLOWS).names == {"web"}


def test_flows_and_copies_that_were_seen_are_kept_apart(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.keep_known(FLOWS, KnownNames(1, frozenset({"web"})))
    home.keep_known(REPLICAS, KnownNames(2, frozenset({"web.n1.0.aa"})))
    assert home.known(FLOWS) == KnownNames(1, frozenset({"web"}))
    assert home.known(REPLICAS) == KnownNames(2, frozenset({"web.n1.0.aa"}))
    (tmp_path / REPLICAS).write_text("[")
    assert home.known(REPLICAS) == KnownNames()
    assert [*home.problems] == [REPLICAS]
    assert home.known(FLOWS).names == {"web"}


def test_the_identity_is_made_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.identity() == home.identity() != Home(tmp_path / "other").identity()


def test_a_directory_has_one_node(tmp_path: Path) -> None:
    first = Home(tmp_path)
    with pytest.raises(UserError, match="another node runs in"):
        Home(tmp_path)
    assert first.path == tmp_path


def test_a_directory_belongs_to_one_cluster(tmp_path: Path) -> None:
    Home(tmp_path / "n").belong_to("a")
    home = Home(tmp_path / "n")
    home.belong_to("a")
    with pytest.raises(UserError, match="flumeng schema import"):
        home.belong_to("b")
    (tmp_path / "n" / "cluster").unlink()
    home.belong_to("b")


def test_what_a_node_keeps_is_for_nobody_else_to_read(tmp_path: Path) -> None:
    """Whoever made the directory, and whatever an earlier version of the node has left in it."""
    tmp_path.chmod(0o755)
    (tmp_path / "sources").mkdir(mode=0o755)
    (tmp_path / "assignment.json").write_text("{}")
    (tmp_path / "assignment.json").chmod(0o644)
    home = Home(tmp_path)
    home.identity()
    home.belong_to("a")
    home.keep_known(FLOWS, KnownNames(1, frozenset({"web"})))
    home.keep_claim(Claim(1, "t"))
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert [name for name, mode in modes.items() if mode and name != "lock"] == []


def test_a_claim_is_kept(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.claim() == Claim()
    home.keep_claim(Claim(3, "t"))
    assert home.claim() == Claim(3, "t")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"number": "x", "token": 5}'])
def test_a_damaged_claim_says_what_to_do_and_stays(tmp_path: Path, text: str) -> None:
    """It does not make the directory a copy, of which what it holds is to be thrown away."""
    home = Home(tmp_path)
    home.keep_claim(Claim(3, "t"))
    (tmp_path / "claim.json").write_text(text)
    with pytest.raises(UserError, match=r'claim\.json is damaged.*"number"'):
        home.claim()
    assert (tmp_path / "claim.json").read_text() == text


def test_a_file_that_cannot_be_read_now_is_no_damage(tmp_path: Path) -> None:
    """Such as for want of descriptors: it is not set aside."""
    home = Home(tmp_path)
    home.keep(wanted(1))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        assert home.kept() is None
        with pytest.raises(UnavailableError, match=r"claim\.json"):
            home.claim()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert home.kept() == wanted(1)
    assert not (tmp_path / "assignment.json.damaged").exists()


def test_copy_of_a_running_nodes_directory_is_noticed(tmp_path: Path) -> None:
    original = Home(tmp_path / "node")
    assert not original.is_restored
    original.mark_running()
    shutil.copytree(tmp_path / "node", tmp_path / "copy")
    original.close()
    assert not Home(tmp_path / "node").is_restored, "it was killed where it was"
    copy = Home(tmp_path / "copy")
    assert copy.is_restored
    copy.mark_running()
    copy.close()
    assert not Home(tmp_path / "copy").is_restored


def test_changed_modes_of_files_make_no_copy(tmp_path: Path) -> None:
    """As by ``chmod -R`` while the node is dead."""
    home = Home(tmp_path / "node")
    home.mark_running()
    home.close()
    time.sleep(1.1)  # change times are compared by the second
    for file in (tmp_path / "node").iterdir():
        file.chmod(0o640)
    assert not Home(tmp_path / "node").is_restored


def test_mark_by_change_time_is_understood(tmp_path: Path) -> None:
    """Nodes before this version wrote it, and those on file systems without birth times do."""
    home = Home(tmp_path / "node")
    lock = (tmp_path / "node" / "lock").stat()
    home.close()
    (tmp_path / "node" / RUN_MARK).write_text(f"{lock.st_ino} {int(lock.st_ctime)}")
    assert not Home(tmp_path / "node").is_restored


def test_directory_that_moved_after_its_node_had_ended_is_no_copy(tmp_path: Path) -> None:
    home = Home(tmp_path / "node")
    home.mark_running()
    home.mark_ended()
    home.close()
    shutil.copytree(tmp_path / "node", tmp_path / "moved")
    assert not Home(tmp_path / "moved").is_restored
