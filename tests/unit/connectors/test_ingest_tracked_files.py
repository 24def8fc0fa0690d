"""The record of known files survives their names, their devices and the worker."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from flumeng.connectors.tail.file_position import MARK_BYTES
from tests.testkit.ingest_worker import Follower, write

LONG = "a line that is longer than a mark " * 10


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def rotate(log: Path, older: int = 0) -> None:
    for number in range(older, 0, -1):
        log.with_name(f"app.log.{number}").rename(log.with_name(f"app.log.{number + 1}"))
    log.rename(log.with_name("app.log.1"))


def attach_anew(follower: Follower) -> None:
    """Simulate that the same files have another device: change the recorded devices."""

    def elsewhere(name: str) -> str:
        kind, device, rest = name.split(":", 2)
        return f"{kind}:{int(device) + 1}:{rest}"

    follower.state = {elsewhere(name): value for name, value in follower.state.items()}
    follower.noted = {elsewhere(name): value for name, value in follower.noted.items()}
    follower.crash()


@pytest.mark.parametrize("seen_as", ["held", "killed"])
def test_seen_but_unread_generations_are_read_under_their_new_names(
    log: Path, seen_as: str
) -> None:
    follower = Follower(log)
    write(log, "0\n")
    follower.settle()
    for generation in range(1, 4):
        rotate(log, generation - 1)
        write(log, f"{generation}\n")
        if seen_as == "held":
            follower.watch()
        else:
            follower.poll()
            follower.crash()
    follower.crash()
    assert sorted(follower.finish()) == ["0", "1", "2", "3"]
    assert follower.tailer.tracked.missed == 0
    assert {follower.attrs(row)["path"] for row in range(4)} == {str(log)}
    follower.crash()
    assert len(follower.finish()) == 4
    assert follower.tailer.tracked.missed == 0


@pytest.mark.parametrize("down", [False, True])
def test_generations_that_came_and_went_between_two_looks_are_read(log: Path, down: bool) -> None:
    """They are recognised by their number and age; one older than the known ones is left alone."""
    old = log.with_name("app.log.7")
    write(old, "before the flow\n")
    os.utime(old, (1e9, 1e9))
    follower = Follower(log)
    write(log, "0\n")
    follower.settle()
    os.utime(log, (2e9, 2e9))
    follower.settle()
    for generation in range(1, 4):
        rotate(log, generation - 1)
        write(log, f"{generation}\n")
        os.utime(log, (2e9 + generation, 2e9 + generation))
    if down:
        follower.crash()
    assert sorted(follower.finish()) == ["0", "1", "2", "3"]
    follower.crash()
    assert len(follower.finish()) == 4
    assert follower.tailer.tracked.missed == 0


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_a_generation_that_was_compressed_before_it_was_found_is_counted(
    log: Path, pattern: str
) -> None:
    """The known one that was compressed too is finished, and is not one of them."""
    follower = Follower(log.with_name(pattern))
    write(log, "0\n")
    follower.settle()
    write(log, "0 rest\n")
    for number, lines in ((2, None), (1, "1\n")):
        if lines:
            write(log, lines)
        packed = log.with_name(f"app.log.{number}.gz")
        packed.write_bytes(gzip.compress(log.read_bytes()))
        os.utime(packed, (2e9 - number, 2e9 - number))
        log.unlink()
    write(log, "2\n")
    follower.crash()
    assert sorted(follower.finish()) == ["0", "0 rest", "2"]
    assert follower.tailer.tracked.missed == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_file_that_is_deleted_with_unread_lines_is_counted(log: Path, begun: bool) -> None:
    follower = Follower(log)
    if begun:
        write(log, "0\n")
        follower.settle()
        follower.crash()
    write(log, "lost\n")
    follower.watch()
    log.unlink()
    assert follower.finish() == ["0"][: int(begun)]
    assert (follower.tailer.tracked.missed, follower.tailer.cut) == (1, 0)
    follower.crash()
    follower.finish()
    assert follower.tailer.tracked.missed == 0
    assert (follower.state, follower.noted) == ({}, {})


def test_a_file_that_was_seen_and_is_gone_at_the_next_start_is_counted(log: Path) -> None:
    """Also when it was empty at first."""
    log.touch()
    follower = Follower(log)
    follower.watch()
    write(log, "lost\n")
    follower.watch()
    log.unlink()
    follower.crash()
    assert follower.finish() == []
    assert follower.tailer.tracked.missed == 1


def test_file_truncated_before_anything_of_it_was_read_is_counted(log: Path) -> None:
    write(log, "lost\n")
    follower = Follower(log)
    follower.watch()
    os.truncate(log, 0)
    write(log, "1\n")
    assert follower.finish() == ["1"]
    assert follower.tailer.cut == 1


def test_a_deleted_file_that_was_read_is_not_counted(log: Path) -> None:
    for crash in (False, True):
        follower = Follower(log)
        write(log, "0\n")
        follower.settle()
        log.unlink()
        if crash:
            follower.crash()
        assert follower.finish() == ["0"]
        assert follower.tailer.tracked.missed == 0


def test_failed_note_of_a_file_is_reported_and_repeated(log: Path) -> None:
    follower = Follower(log)
    kept = follower.tailer.tracked._note

    def refuse(_: object) -> None:
        raise OSError(28, "No space left on device")

    follower.tailer.tracked._note = refuse
    write(log, "1\n")
    follower.watch()
    assert follower.tailer.tracked.not_noted == "No space left on device"
    follower.tailer.tracked._note = kept
    follower.watch()
    assert follower.tailer.tracked.not_noted == ""
    assert len(follower.noted) == 1


@pytest.mark.parametrize("text", ["1", LONG])
@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_volume_attached_as_another_device_is_read_on(log: Path, pattern: str, text: str) -> None:
    follower = Follower(log.with_name(pattern))
    write(log, f"{text} rotated\n")
    follower.settle()
    identity = follower.attrs(0)["inode"]
    rotate(log)
    write(log, f"{text}\n")
    log.with_name("app.log.empty").touch()
    lines = list(follower.settle())
    attach_anew(follower)
    write(log, "2\n")
    write(log.with_name("app.log.1"), "late\n")
    lines += ["2", "late"]
    assert sorted(follower.finish()) == sorted(lines)
    row = follower.lines.index("2")
    device, inode = follower.attrs(row)["inode"].split(":")
    assert int(device) == log.stat().st_dev + 1
    assert int(inode) == log.stat().st_ino
    assert identity != follower.attrs(row)["inode"]
    for _ in range(2):
        attach_anew(follower)
        assert len(follower.finish()) == len(lines)
    assert (follower.tailer.cut, follower.tailer.tracked.missed) == (0, 0)
    write(log, "3\n")
    assert follower.finish()[-1] == "3"
    follower.crash()
    assert len(follower.finish()) == len(lines) + 1


def test_many_files_of_equal_content_are_all_known_on_another_device(tmp_path: Path) -> None:
    """By their paths; and a new one of the same content is read."""
    follower = Follower(tmp_path / "*.log")
    for number in range(20):
        write(tmp_path / f"{number}.log", "started\n")
    assert follower.settle() == ["started"] * 20
    (tmp_path / "7.log").unlink()
    write(tmp_path / "new.log", "started\n")
    attach_anew(follower)
    assert follower.finish() == ["started"] * 21


def test_another_file_on_another_device_is_read_from_its_beginning(log: Path) -> None:
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    log.write_text("other\n")
    attach_anew(follower)
    assert follower.finish() == ["1", "other"]


@pytest.mark.parametrize(("text", "again"), [("short\n", True), ("x" * MARK_BYTES + "\n", False)])
def test_restored_file_is_recognised_by_its_content_when_it_is_long_enough(
    log: Path, text: str, again: bool
) -> None:
    """Of the same device and with another inode; a short one may be another that begins alike."""
    write(log, text)
    follower = Follower(log)
    follower.settle()
    follower.crash()
    shutil.copyfile(log, log.with_name("restored"))
    log.unlink()
    log.with_name("restored").rename(log)
    write(log, "more\n")
    assert follower.finish() == [text.strip()] * (1 + again) + ["more"]


def test_cursor_of_older_versions_is_read(log: Path) -> None:
    """It lies in the form that this project wrote until its state knew sizes."""
    rotated = log.with_name("app.log.1")
    follower = Follower(log)
    write(log, f"{LONG}\n")
    follower.settle()
    rotate(log)
    write(log, "1\n")
    follower.settle()
    for value in follower.state.values():
        cursor = cast("dict[str, Any]", value)
        del cursor["size"]
        mark = [0, 0, "e4a6a0577479b2b4"]
        cursor |= {"start": "", "earlier": [mark, mark], "end": 0}
    follower.noted.clear()
    follower.crash()
    write(log, "2\n")
    write(rotated, "late\n")
    assert sorted(follower.finish()) == sorted([LONG, "1", "2", "late"])
    assert (follower.tailer.cut, follower.tailer.tracked.missed) == (0, 0)


def test_a_read_generation_whose_inode_is_used_again_is_not_counted(log: Path) -> None:
    """Also when the worker ends before it has given up on it."""
    rotated = log.with_name("app.log.1")
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    rotate(log)
    write(log, "2\n")
    follower.finish()
    rotated.rename(log.with_name("strange")).write_text("strange\n")
    follower.crash()
    follower.poll()
    follower.commit()
    follower.crash()
    assert follower.finish() == ["1", "2"]
    assert (follower.tailer.cut, follower.tailer.tracked.missed) == (0, 0)


def test_generation_with_the_inode_of_an_older_one_is_read(log: Path) -> None:
    rotated = log.with_name("app.log.1")
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    follower.crash()
    rotate(log)
    rotated.write_text("another generation\n")
    write(log, "3\n")
    assert sorted(follower.finish()) == ["1", "3", "another generation"]


def take_inode(of: Path, path: Path) -> None:
    """Give a new, empty file the inode of a deleted one."""
    of.rename(path)
    os.truncate(path, 0)


@pytest.mark.parametrize("ends", ["no worker", "the first", "the second", "both", "half journaled"])
@pytest.mark.parametrize("text", ["1", LONG])
def test_held_file_with_a_reused_inode_is_read_after_it_left_the_globs(
    tmp_path: Path, text: str, ends: str
) -> None:
    """The record of the other log is still in the journal, under that inode."""
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    follower = Follower(old, new)
    write(old, f"0 {LONG}\n")
    follower.settle()
    follower.now += 100  # so that it is closed
    follower.settle()
    if ends in ("the first", "both"):
        follower.crash()
    take_inode(old, new)
    write(new, f"{text}\n")
    follower.watch()
    rotated = new.with_name("new.log.1")
    new.rename(rotated)
    follower.watch()
    write(rotated, "2\n")
    if ends in ("the second", "both"):
        follower.crash()
    follower.watch()
    if ends == "half journaled":
        follower.poll()
        follower.commit(1)  # the records of the files, and no line
        follower.crash()
    assert follower.finish() == [f"0 {LONG}", text, "2"]
    assert {follower.attrs(row)["path"] for row in (1, 2)} == {str(new)}
    assert (follower.tailer.tracked.missed, follower.tailer.cut) == (0, 0)
    follower.crash()
    assert len(follower.finish()) == 3
    assert (follower.tailer.tracked.missed, follower.tailer.cut) == (0, 0)
    assert not follower.noted


def test_unread_lines_of_a_deleted_file_are_counted_though_its_inode_is_reused(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    follower = Follower(old, new)
    write(old, f"0 {LONG}\n")
    follower.settle()
    follower.crash()
    write(old, "lost\n")
    follower.watch()
    take_inode(old, new)
    write(new, "1\n")
    follower.watch()
    assert follower.finish() == [f"0 {LONG}", "1"]
    assert (follower.tailer.tracked.missed, follower.tailer.cut) == (1, 0)


@pytest.mark.parametrize("read", [False, True])
def test_generation_that_reused_an_inode_between_two_looks_is_read(
    tmp_path: Path, read: bool
) -> None:
    """It was never seen under a name that the globs match."""
    old, log = tmp_path / "old.log", tmp_path / "app.log"
    follower = Follower(old, log)
    write(log, "0\n")
    follower.settle()
    write(old, f"{LONG}\n")
    if read:
        follower.settle()
    else:
        follower.watch()
    follower.crash()
    follower.watch()
    rotate(log)
    os.utime(log.with_name("app.log.1"), (2e9, 2e9))
    take_inode(old, log)
    write(log, "1\n")
    os.utime(log, (2e9 + 1, 2e9 + 1))
    rotate(log, 1)
    write(log, "2\n")
    assert sorted(follower.finish()) == sorted(["0", "1", "2", *[LONG][: int(read)]])
    assert follower.tailer.tracked.missed == int(not read)
    assert follower.tailer.cut == 0


def test_log_that_reuses_the_inode_of_a_lost_file_is_read_whole(tmp_path: Path) -> None:
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    follower = Follower(tmp_path / "*.log")
    write(old, "lost\n")
    follower.watch()
    take_inode(old, new)
    write(new, f"{LONG}\n")
    assert follower.finish() == [LONG]
    assert follower.attrs(0)["path"] == str(new)


@pytest.mark.parametrize("held", [False, True])
def test_generations_that_all_reused_inodes_while_the_worker_was_down_are_read(
    tmp_path: Path, held: bool
) -> None:
    """Of other logs, and of an older generation of the same one."""
    olds, log = [tmp_path / f"old{number}.log" for number in range(2)], tmp_path / "app.log"
    follower = Follower(log, *olds)
    for path in (log, *olds):
        write(path, f"{path.name} {LONG}\n")
    follower.settle()
    rotate(log)
    write(log, "current\n")
    read = follower.settle()
    follower.crash()
    generations = {3: olds[0], 2: log.with_name("app.log.1"), 0: olds[1]}
    log.rename(log.with_name("app.log.4"))
    os.utime(log.with_name("app.log.4"), (2e9, 2e9))
    for number, inode in generations.items():
        path = log.with_name(f"app.log.{number}") if number else log
        take_inode(inode, path)
        write(path, f"generation {number}\n")
        os.utime(path, (2e9 + 9 - number, 2e9 + 9 - number))
    if held:
        follower.watch()
        follower.crash()
    assert sorted(follower.finish()) == sorted([*read, *(f"generation {n}" for n in generations)])
    assert (follower.tailer.tracked.missed, follower.tailer.cut) == (0, 0)
    follower.crash()
    assert len(follower.finish()) == len(read) + 3


def test_unreadable_file_that_left_the_globs_is_no_problem_any_more(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    write(log, "1\n")
    follower = Follower(log)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        follower.settle()
    assert list(follower.tailer.unreadable) == [str(log)]
    log.rename(log.with_name("elsewhere"))
    follower.finish()
    assert follower.tailer.unreadable == {}


@pytest.mark.parametrize("glob", ["**/*.log", "x/*.log"])
def test_folder_that_vanishes_during_a_search_is_no_error(
    tmp_path: Path, glob: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    write(folder / "app.log", "1\n")
    follower = Follower(tmp_path / glob)
    follower.settle()
    (folder / "app.log").unlink()

    def stat_and_remove(path: Any, *args: Any, **options: Any) -> os.stat_result:
        status = real(path, *args, **options)
        if os.fspath(path) == str(folder):
            folder.rmdir()
        return status

    real = os.stat
    monkeypatch.setattr(os, "stat", stat_and_remove)
    assert follower.finish() == ["1"]
