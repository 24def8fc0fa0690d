"""The node's data directory."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from flumeng.agent.node.claim import Claim
from flumeng.agent.node.data_directory import FLOWS, REPLICAS, RUN_MARK, DataDirectory, KnownNames
from flumeng.agent.node.events import Assigned
from flumeng.platform.errors import UnavailableError, UserError
from zkschema import codec
from zkschema.records import COLLECT, AssignedTask, Assignment


def wanted(tasks: int) -> Assigned:
    assigned = tuple(
        AssignedTask(
            flow="web", task=f"collect.{n}", kind=COLLECT, epoch=n, revision=1, state="assigned"
        )
        for n in range(tasks)
    )
    return Assigned(7, Assignment(tasks=assigned), {("web", 1): "flow: web\nnäme: ✓"})


@pytest.mark.parametrize("tasks", [0, 1, 5000])
@pytest.mark.slow
def test_the_last_assignment_is_kept(tmp_path: Path, tasks: int) -> None:
    home = DataDirectory(tmp_path / "node")
    assert home.kept() is None
    home.keep(wanted(3))
    home.keep(wanted(tasks))
    assert home.kept() == wanted(tasks)


def test_largest_kept_assignment_is_compressed() -> None:
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
def test_damaged_file_is_set_aside_and_reported(tmp_path: Path, name: str, text: bytes) -> None:
    home = DataDirectory(tmp_path)
    (tmp_path / name).write_bytes(text)
    assert home.kept() is None
    assert home.known_names(FLOWS) == KnownNames()
    assert (tmp_path / f"{name}.damaged").read_bytes() == text
    assert [*home.problems] == [name]
    home.keep(wanted(1))
    home.keep_known(FLOWS, KnownNames(2, frozenset({"web"})))
    assert home.problems == {}
    assert home.kept() == wanted(1)
    assert home.known_names(FLOWS).names == {"web"}


def test_known_flows_and_replicas_are_kept_in_separate_files(tmp_path: Path) -> None:
    home = DataDirectory(tmp_path)
    home.keep_known(FLOWS, KnownNames(1, frozenset({"web"})))
    home.keep_known(REPLICAS, KnownNames(2, frozenset({"web.n1.0.aa"})))
    assert home.known_names(FLOWS) == KnownNames(1, frozenset({"web"}))
    assert home.known_names(REPLICAS) == KnownNames(2, frozenset({"web.n1.0.aa"}))
    (tmp_path / REPLICAS).write_text("[")
    assert home.known_names(REPLICAS) == KnownNames()
    assert [*home.problems] == [REPLICAS]
    assert home.known_names(FLOWS).names == {"web"}


def test_the_identity_is_made_once(tmp_path: Path) -> None:
    home = DataDirectory(tmp_path)
    assert home.identity() == home.identity() != DataDirectory(tmp_path / "other").identity()


def test_file_system_without_locks_is_not_taken_for_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_file: object, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"cannot lock .*: No locks available"):
        DataDirectory(tmp_path)


def test_data_directory_is_locked_by_one_node(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(UserError, match="another node runs in"):
        DataDirectory(tmp_path)
    assert first.path == tmp_path


def test_directory_that_cannot_store_the_nodes_id_is_an_error(tmp_path: Path) -> None:
    """Such as on a full disk, at the first start."""
    home = DataDirectory(tmp_path)
    (tmp_path / "uuid.tmp").mkdir()
    with pytest.raises(UserError, match=r"cannot read or write .*uuid: Is a directory"):
        home.identity()
    (tmp_path / "uuid.tmp").rmdir()
    assert home.identity() == home.identity()


def test_a_directory_belongs_to_one_cluster(tmp_path: Path) -> None:
    DataDirectory(tmp_path / "n").belong_to("a")
    home = DataDirectory(tmp_path / "n")
    home.belong_to("a")
    with pytest.raises(UserError, match="flumeng schema import"):
        home.belong_to("b")
    (tmp_path / "n" / "cluster").unlink()
    home.belong_to("b")


def test_files_of_a_node_are_private(tmp_path: Path) -> None:
    """For any earlier mode of the directory, and of files left by an earlier version of the
    node."""
    tmp_path.chmod(0o755)
    (tmp_path / "sources").mkdir(mode=0o755)
    (tmp_path / "assignment.json").write_text("{}")
    (tmp_path / "assignment.json").chmod(0o644)
    home = DataDirectory(tmp_path)
    home.identity()
    home.belong_to("a")
    home.keep_known(FLOWS, KnownNames(1, frozenset({"web"})))
    home.keep_claim(Claim(1, "t"))
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert [name for name, mode in modes.items() if mode and name != "lock"] == []


def test_claim_is_stored(tmp_path: Path) -> None:
    home = DataDirectory(tmp_path)
    assert home.claim() == Claim()
    home.keep_claim(Claim(3, "t"))
    assert home.claim() == Claim(3, "t")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"number": "x", "token": 5}'])
def test_damaged_claim_is_reported_with_advice_and_stays(tmp_path: Path, text: str) -> None:
    """It does not make the directory a copy, whose journals would be discarded."""
    home = DataDirectory(tmp_path)
    home.keep_claim(Claim(3, "t"))
    (tmp_path / "claim.json").write_text(text)
    with pytest.raises(UserError, match=r'claim\.json is damaged.*"number"'):
        home.claim()
    assert (tmp_path / "claim.json").read_text() == text


def test_temporarily_unreadable_file_is_no_damage(tmp_path: Path) -> None:
    """Such as for want of descriptors: it is not set aside."""
    home = DataDirectory(tmp_path)
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
    original = DataDirectory(tmp_path / "node")
    assert not original.run_mark.is_foreign
    original.run_mark.set()
    shutil.copytree(tmp_path / "node", tmp_path / "copy")
    original.close()
    assert not DataDirectory(tmp_path / "node").run_mark.is_foreign, "it was killed where it was"
    copy = DataDirectory(tmp_path / "copy")
    assert copy.run_mark.is_foreign
    copy.run_mark.set()
    copy.close()
    assert not DataDirectory(tmp_path / "copy").run_mark.is_foreign


@pytest.mark.slow
def test_changed_file_modes_do_not_look_like_a_copy(tmp_path: Path) -> None:
    """As by ``chmod -R`` while the node is dead."""
    home = DataDirectory(tmp_path / "node")
    home.run_mark.set()
    home.close()
    time.sleep(1.1)  # change times are compared by the second
    for file in (tmp_path / "node").iterdir():
        file.chmod(0o640)
    assert not DataDirectory(tmp_path / "node").run_mark.is_foreign


def test_mark_of_an_older_version_by_change_time_is_accepted(tmp_path: Path) -> None:
    """Nodes before this version wrote it, and those on file systems without birth times do."""
    home = DataDirectory(tmp_path / "node")
    lock = (tmp_path / "node" / "lock").stat()
    home.close()
    (tmp_path / "node" / RUN_MARK).write_text(f"{lock.st_ino} {int(lock.st_ctime)}")
    assert not DataDirectory(tmp_path / "node").run_mark.is_foreign


def test_directory_that_moved_after_its_node_had_ended_is_no_copy(tmp_path: Path) -> None:
    home = DataDirectory(tmp_path / "node")
    home.run_mark.set()
    home.run_mark.clear()
    home.close()
    shutil.copytree(tmp_path / "node", tmp_path / "moved")
    assert not DataDirectory(tmp_path / "moved").run_mark.is_foreign
