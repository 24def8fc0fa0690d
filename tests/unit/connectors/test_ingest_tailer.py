"""Each line of a file is taken exactly once, over any change of the file and any end of the
worker."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from flumeng.connectors.tail import tailed_file
from flumeng.connectors.tail.file_position import cursors
from flumeng.connectors.tail.tailer import QUIET_SECONDS
from tests.testkit.ingest_worker import Follower, write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def test_lines_have_their_file_and_offset(log: Path) -> None:
    write(log, "one\n\nthree\r\n")
    follower = Follower(log)
    assert follower.settle() == ["one", "", "three"]
    status = log.stat()
    assert follower.attrs(2) == {
        "source": "tail",
        "path": str(log),
        "inode": f"{status.st_dev}:{status.st_ino}",
        "offset": "5",
    }
    assert follower.events[0]["host"] == "me"


def test_files_created_later_are_read(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "*.log", tmp_path / "deep" / "**" / "*.txt")
    assert follower.settle() == []
    write(tmp_path / "a.log", "a\n")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write(tmp_path / "deep" / "er" / "b.txt", "b\n")
    assert follower.settle() == ["a", "b"]


def test_incomplete_line_waits_for_its_newline(log: Path) -> None:
    write(log, "whole\npart")
    follower = Follower(log)
    assert follower.settle() == ["whole"]
    assert follower.settle(seconds=1000) == ["whole"]
    write(log, "ial\n")
    assert follower.settle() == ["whole", "partial"]


def test_a_renamed_file_is_read_to_its_end_and_its_successor_from_the_start(log: Path) -> None:
    write(log, "old 1\n")
    follower = Follower(log)
    follower.settle()
    write(log, "old 2\nlast words")
    log.rename(log.with_name("app.log.1"))
    write(log, "new 1\n")
    assert sorted(follower.settle()) == ["new 1", "old 1", "old 2"]
    write(log.with_name("app.log.1"), " of it")
    follower.settle(seconds=QUIET_SECONDS / 2)
    assert len(follower.lines) == 3
    follower.settle(seconds=QUIET_SECONDS)
    assert follower.lines[3:] == ["last words of it"]
    assert follower.attrs(3)["path"] == str(log)


def test_rotation_while_the_worker_is_down_loses_nothing(log: Path) -> None:
    """The inode is looked up in the folder, under any name that it has now."""
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    write(log, "2\n")
    log.rename(log.with_name("moved"))
    write(log, "3\n")
    follower.crash()
    assert sorted(follower.settle()) == ["1", "2", "3"]


def test_late_lines_in_a_rotated_file_are_read(log: Path) -> None:
    """A program may keep its old file for long, also over a restart of the worker."""
    rotated = log.with_name("app.log.1")
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    log.rename(rotated)
    follower.settle(seconds=3 * QUIET_SECONDS)
    write(rotated, "2\n")
    assert follower.settle() == ["1", "2"]
    follower.crash()
    follower.settle()
    write(rotated, "3\n")
    assert follower.settle() == ["1", "2", "3"]


def test_rotated_file_that_was_read_is_closed(log: Path) -> None:
    rotated = log.with_name("app.log.1")
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    log.rename(rotated)
    for _ in range(2):
        follower.finish()
        follower.poll()
        assert rotated not in {fd.resolve() for fd in Path("/proc/self/fd").iterdir()}
        follower.crash()


def test_rotated_file_that_matches_the_glob_is_not_read_twice(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    follower = Follower(tmp_path / "app.log*")
    write(log, "1\n")
    follower.settle()
    log.rename(tmp_path / "app.log.1")
    write(log, "2\n")
    follower.crash()
    assert follower.settle() == ["1", "2"]


def test_last_line_without_newline_of_a_rotated_file_is_read(tmp_path: Path) -> None:
    """Also by a worker that was not there at the rotation."""
    log = tmp_path / "app.log"
    follower = Follower(tmp_path / "app.log*")
    write(log, "1\nlast words")
    assert follower.settle(seconds=2 * QUIET_SECONDS) == ["1"]
    log.rename(tmp_path / "app.log.1")
    follower.crash()
    follower.settle(seconds=QUIET_SECONDS)
    assert follower.settle(seconds=QUIET_SECONDS) == ["1", "last words"]
    write(tmp_path / "app.log.1", "and more\n")
    assert follower.settle() == ["1", "last words", "and more"]
    assert {follower.attrs(row)["path"] for row in range(3)} == {str(log)}


@pytest.mark.parametrize("share", [0, 300])
def test_a_later_copy_in_the_making_is_no_generation_of_its_own(log: Path, share: int) -> None:
    """Copies are numbered on before the next is made, and looked at while it is."""
    follower = Follower(log)
    first, second = log.with_name("app.log.1"), log.with_name("app.log.2")
    write(log, "a\n" * 200)
    follower.settle()
    shutil.copy(log, first)
    os.truncate(log, 0)
    follower.settle()
    lines = "".join(f"b {number}\n" for number in range(200))
    write(log, lines)
    first.rename(second)
    first.write_text(lines[:share])
    follower.settle()
    follower.settle()
    first.write_text(lines)
    follower.settle()
    assert follower.lines == ["a"] * 200 + lines.splitlines()


def test_copytruncate_restarts_at_the_beginning(log: Path) -> None:
    write(log, "1\n2\n")
    follower = Follower(log)
    follower.settle()
    shutil.copy(log, log.with_name("app.log.1"))
    os.truncate(log, 0)
    write(log, "3\n")
    assert follower.settle() == ["1", "2", "3"]
    follower.crash()
    assert follower.settle() == ["1", "2", "3"]


def test_file_that_is_truncated_starts_over_though_it_begins_as_before(log: Path) -> None:
    first, second = "x" * 400, "y" * 100
    write(log, f"{first}\n{second}\n")
    follower = Follower(log)
    follower.settle()
    os.truncate(log, 401)
    assert follower.settle() == [first, second, first]


def test_file_truncated_and_grown_beyond_its_old_end_is_noticed(log: Path) -> None:
    """By how the file begins, when its size cannot tell."""
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    os.truncate(log, 0)
    write(log, "other\nlines\n")
    assert follower.settle() == ["1", "other", "lines"]


def test_file_truncated_and_grown_from_the_same_beginning_is_noticed(log: Path) -> None:
    """By the bytes before the offset, when neither the size nor the beginning can tell."""
    banner = ["the same lines at the beginning, longer than a mark"] * 6
    write(log, "\n".join([*banner, "1", ""]))
    follower = Follower(log)
    follower.settle()
    os.truncate(log, 0)
    write(log, "\n".join([*banner, "other", "lines", ""]))
    assert follower.settle() == [*banner, "1", *banner, "other", "lines"]


def test_file_truncated_and_renamed_at_once_is_read(log: Path) -> None:
    """It has been open all the time, so it is no other file."""
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    os.truncate(log, 0)
    write(log, "2\n")
    log.rename(log.with_name("app.log.1"))
    assert follower.settle() == ["1", "2"]


@pytest.mark.parametrize("text", ["", "-", "1\n", "-\n", "no log at all\n"])
def test_foreign_file_with_the_inode_of_a_rotated_one_is_not_read(
    log: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    strange = log.with_name("strange")
    log.rename(strange)
    strange.write_text(text)
    follower.crash()
    assert follower.finish() == ["1"]
    assert len(follower.state) == (text == "1\n")
    assert str(strange) not in caplog.text


def test_an_inode_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    """Simulated by the cursor: a new file with the number of an old one, as long as that was."""
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    write(old, "aaaa\n")
    follower = Follower(tmp_path / "*.log")
    follower.settle()
    old.rename(new)
    new.write_text("bbbb\n")
    follower.crash()
    assert follower.settle() == ["aaaa", "bbbb"]
    assert follower.attrs(1)["path"] == str(new)


def test_a_deleted_file_is_read_to_its_end_and_then_forgotten(log: Path) -> None:
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    writer = log.open("a")
    log.unlink()
    writer.write("2\nno newline")
    writer.close()
    assert follower.settle() == ["1", "2"]
    assert len(cursors(follower.state)) == 1
    follower.settle(seconds=2 * QUIET_SECONDS)
    assert follower.lines == ["1", "2", "no newline"]
    assert cursors(follower.state) == {}


def test_the_state_of_a_file_that_went_while_the_worker_was_down_is_removed(log: Path) -> None:
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    log.unlink()
    follower.crash()
    follower.settle()
    assert follower.state == {}


def test_lines_read_and_not_journaled_are_read_again(log: Path) -> None:
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    write(log, "2\n")
    follower.poll()
    follower.crash()
    assert follower.settle() == ["1", "2"]


def test_overlong_lines_are_cut_and_their_rest_is_skipped_also_over_a_crash(log: Path) -> None:
    follower = Follower(log, max_line_bytes=1000)
    write(log, "x" * 3000)
    follower.settle()
    assert follower.lines == ["x" * 1000]
    assert follower.attrs(0)["truncated"] == "true"
    follower.crash()
    write(log, "x" * 3000 + "\nnext\n")
    assert follower.settle()[1:] == ["next"]
    assert follower.attrs(1)["offset"] == "6001"
    assert follower.truncated == 1


@pytest.mark.slow
def test_many_empty_lines_fit_into_frames_with_their_state(log: Path) -> None:
    log.write_bytes(b"\n" * 200_000)
    assert len(Follower(log).settle()) == 200_000


def test_lines_longer_than_a_block_are_whole(log: Path) -> None:
    size = tailed_file.READ_BYTES
    follower = Follower(log, max_line_bytes=3 * size)
    write(log, "a" * (2 * size) + "\nb\n")
    assert [len(line) for line in follower.settle()] == [2 * size, 1]


def test_start_from_end_skips_only_the_lines_before_the_flow(tmp_path: Path) -> None:
    old, part, new = tmp_path / "old.log", tmp_path / "part.log", tmp_path / "new.log"
    write(old, "old\n")
    write(part, "no newl")
    follower = Follower(tmp_path / "*.log", start_from="end")
    follower.settle()
    follower.crash()
    write(new, "new\n")
    write(old, "more\n")
    write(part, "ine\nnext\n")
    assert sorted(follower.settle()) == ["more", "new", "next"]


def test_file_rotated_before_a_start_from_the_end_is_left_alone(log: Path) -> None:
    """Also when a program goes on writing into it for a while."""
    log.touch()
    follower = Follower(log, start_from="end")
    follower.settle()
    follower.crash()
    write(log.with_name("app.log.1"), "before\n")
    write(log, "1\n")
    assert follower.settle() == ["1"]


@pytest.mark.slow
def test_large_file_does_not_starve_the_others(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "*.log")
    (tmp_path / "a.log").write_bytes(b"a" * 99 + b"\n" * 400_000)
    write(tmp_path / "b.log", "b\n")
    follower.poll()
    follower.poll()
    follower.commit()
    assert "b" in follower.lines


@pytest.mark.slow
def test_files_with_a_backlog_do_not_starve_each_other_or_new_files(tmp_path: Path) -> None:
    """Each look takes some megabytes, which the first few of them have for very many looks."""
    for number in range(8):
        (tmp_path / f"{number}.log").write_bytes((b"x" * 9_999 + b"\n") * 1_200)
    follower = Follower(tmp_path / "*.log")
    for _ in range(3):
        follower.poll()
    write(tmp_path / "late.log", "late\n")
    follower.now += 100
    for _ in range(12):
        follower.poll()
    follower.commit()
    assert "late" in follower.lines
    assert {Path(dict(event["attrs"])["path"]).stem for event in follower.events} > set("01234567")


def test_unreadable_file_is_reported_and_read_once_it_can_be(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    write(log, "1\n")
    follower = Follower(log)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert follower.settle() == []
        assert follower.tailer.unreadable == {str(log): "Permission denied"}
    assert follower.settle() == ["1"]
    assert follower.tailer.unreadable == {}


def test_path_that_left_the_flow_is_left_alone(tmp_path: Path) -> None:
    """Its cursor stays, so that it is not read again when it is wanted once more."""
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    write(first, "1\n")
    write(second, "2\n")
    follower = Follower(first)
    follower.settle()
    follower.crash(second)
    write(first, "not read\n")
    assert follower.settle() == ["1", "2"]
    follower.crash(first, second)
    assert follower.settle() == ["1", "2", "not read"]


def test_a_name_that_is_not_utf8_does_not_stop_the_flow(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.log"))
    write(path, "1\n")
    follower = Follower(tmp_path / "*.log")
    assert follower.settle() == ["1"]
    assert follower.attrs(0)["path"].endswith("caf\ufffd.log")


def test_redirected_symlink_loses_nothing(tmp_path: Path) -> None:
    """The old file is finished where it is, also when the symlink was switched meanwhile."""
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        write(tmp_path / release / "app.log", f"{release} 1\n")
    current = tmp_path / "current"
    current.symlink_to("one")
    follower = Follower(current / "*.log")
    follower.settle()
    write(tmp_path / "one" / "app.log", "one 2\n")
    (tmp_path / "one" / "app.log").rename(tmp_path / "one" / "app.log.1")
    current.unlink()
    current.symlink_to("two")
    follower.crash()
    assert sorted(follower.settle()) == ["one 1", "one 2", "two 1"]


def test_reused_inode_with_the_same_beginning_is_another_file(tmp_path: Path) -> None:
    """The bytes before the offset differ, when the first lines do not."""
    head = "the same first line of every file, longer than a mark\n" * 6
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    write(old, head + "old 1\n")
    follower = Follower(tmp_path / "*.log")
    follower.settle()
    old.rename(new)
    new.write_text(head + "new 1\nnew 2\n")
    follower.crash()
    assert follower.settle()[6:] == ["old 1", *head.splitlines(), "new 1", "new 2"]
