"""What was written, copied and truncated between two looks, so that only its copy is left, and
nothing of its content is known: it is told by its name and its age."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from flumeng.ingest.testing import Follower, copy_and_truncate, pread_but_of, write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def seen_truncated(log: Path) -> Follower:
    """A follower that has read the line 1, and knows that the log was copied and truncated then."""
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    copy_and_truncate(log)
    follower.finish()
    return follower


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("down_before", [False, True])
@pytest.mark.parametrize("later", [[], ["3"]])
def test_truncated_again_before_anything_was_read(
    log: Path, pattern: str, down: bool, down_before: bool, later: list[str]
) -> None:
    """Nothing in the log tells that there was something in it meanwhile."""
    follower = Follower(log.with_name(pattern))
    write(log, "1\n")
    follower.settle()
    if down_before:
        follower.crash()
    copy_and_truncate(log)
    assert follower.finish() == ["1"]
    if down:
        follower.crash()
    write(log, "2a\n2b\n")
    copy_and_truncate(log)
    for text in later:
        write(log, f"{text}\n")
    assert sorted(follower.finish()) == ["1", "2a", "2b", *later]
    if pattern == "app.log":
        row = follower.lines.index("2b")
        assert follower.attrs(row) == follower.attrs(0) | {"offset": "3"}
    follower.crash()
    assert len(follower.finish()) == 3 + len(later)
    assert follower.tailer.cut == 0


@pytest.mark.parametrize("read_before", [False, True])
def test_the_copy_may_have_the_inode_of_an_older_one(log: Path, read_before: bool) -> None:
    follower = Follower(log)
    copy = log.with_name("app.log.1")
    for text in ("1", "2", "3"):
        write(log, f"{text}\n")
        if text == "1":
            follower.settle()
        shutil.copyfile(log, copy)
        if read_before:
            follower.settle()
        os.truncate(log, 0)
        assert follower.finish() == ["1", "2", "3"][: int(text)]
        follower.crash()
    assert follower.tailer.cut == 0


@pytest.mark.parametrize("read_before", [False, True])
def test_the_copy_may_be_made_in_one_that_is_open(log: Path, read_before: bool) -> None:
    follower = Follower(log)
    copy = log.with_name("app.log.1")
    write(log, "1\n")
    follower.settle()
    shutil.copyfile(log, copy)
    os.truncate(log, 0)
    follower.settle()
    write(log, "2\n")
    shutil.copyfile(log, copy)
    if read_before:
        follower.settle()
    os.truncate(log, 0)
    write(log, "3\n")
    assert sorted(follower.finish()) == ["1", "2", "3"]
    assert follower.tailer.cut == 0


def test_the_copy_is_known_together_with_the_first_lines_that_follow_it(log: Path) -> None:
    follower = seen_truncated(log)
    write(log, "2\n")
    copy_and_truncate(log)
    write(log, "3\n")
    follower.poll()
    follower.commit(1)
    assert follower.lines == ["1", "3"]
    follower.crash()
    assert follower.finish() == ["1", "3", "2"]


def test_the_copy_is_read_also_when_the_log_is_gone(log: Path) -> None:
    follower = seen_truncated(log)
    follower.crash()
    write(log, "2\n")
    copy_and_truncate(log)
    log.unlink()
    assert follower.finish() == ["1", "2"]


def test_the_copy_that_cannot_be_read_is_waited_for(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the log with it, since it counts as read together with that."""
    follower = seen_truncated(log)
    write(log, "2\n")
    copy = copy_and_truncate(log)
    write(log, "3\n")
    monkeypatch.setattr(os, "pread", pread_but_of(copy))
    assert follower.finish() == ["1"]
    assert follower.tailer.unreadable == {str(log): "Input/output error"}
    monkeypatch.undo()
    assert sorted(follower.finish()) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("app.log.1", ["1", "2", "foreign", "3"]),
        ("app.log-20261121", ["1", "2", "foreign", "3"]),
        ("app-20261121.log", ["1", "2", "foreign", "3"]),
        ("app-2.log", ["1", "2", "3"]),
        ("app.log.old", ["1", "2", "3"]),
        ("app.logger.1", ["1", "2", "3"]),
    ],
)
def test_what_is_taken_for_a_copy_by_its_name_and_age_alone(
    log: Path, name: str, expected: list[str]
) -> None:
    """``app-2.log`` may be the log of a second program."""
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    copy_and_truncate(log, number=7)
    follower.finish()
    write(log.with_name(name), "foreign\n")
    write(log, "3\n")
    assert sorted(follower.finish()) == sorted(expected)


def test_what_is_read_already_in_its_own_right_is_no_such_copy(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    follower = Follower(log.with_name("app.log*"))
    write(log, "1\n")
    follower.settle()
    copy_and_truncate(log)
    follower.finish()
    write(log.with_name("app.log.2"), "other\n")
    assert follower.finish() == ["1", "other"]
    write(log, "2\n")
    assert follower.finish() == ["1", "other", "2"]
    assert "meanwhile; reading it" not in caplog.text


def test_an_older_file_is_not_taken_for_a_copy_by_its_name_alone(log: Path) -> None:
    write(log.with_name("app.log.3"), "before\n")
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    os.utime(log.with_name("app.log.3"), (0, 0))
    copy_and_truncate(log)
    follower.finish()
    write(log, "2\n")
    assert follower.finish() == ["1", "2"]
