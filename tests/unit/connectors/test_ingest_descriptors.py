"""A followed file is open while something comes: with few descriptors, or after a while, it rests,
and nothing of it is missed or read twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.connectors.tail.descriptors import Descriptors
from flumeng.connectors.tail.tailer import IDLE_SECONDS
from tests.testkit.ingest_worker import Follower, copy_and_truncate, write


@pytest.fixture
def budget() -> Descriptors:
    return Descriptors(4)


@pytest.mark.slow
def test_more_files_than_descriptors_are_read_in_turn(tmp_path: Path, budget: Descriptors) -> None:
    for number in range(50):
        write(tmp_path / f"{number}.log", f"{number} one\n")
    follower = Follower(tmp_path / "*.log", descriptors=budget)
    for _ in range(100):
        follower.poll()
        assert budget.taken <= budget.most
    follower.commit()
    assert sorted(follower.lines) == sorted(f"{number} one" for number in range(50))
    for number in range(50):
        write(tmp_path / f"{number}.log", f"{number} two\n")
    (tmp_path / "7.log").rename(tmp_path / "7.log.1")
    for _ in range(100):
        follower.poll()
    follower.commit()
    assert sorted(follower.lines[50:]) == sorted(f"{number} two" for number in range(50))
    assert follower.tailer.unreadable == {}
    follower.tailer.close()
    assert budget.taken == 0


def test_an_idle_file_is_closed_and_read_on_when_it_grows(
    tmp_path: Path, budget: Descriptors
) -> None:
    log = tmp_path / "app.log"
    write(log, "one\nunfinished")
    follower = Follower(log, descriptors=budget)
    assert follower.settle() == ["one"]
    assert budget.taken == 1
    follower.poll(IDLE_SECONDS)
    assert budget.taken == 0
    follower.poll()
    assert budget.taken == 0
    write(log, " two\n")
    assert follower.settle() == ["one", "unfinished two"]
    follower.poll(IDLE_SECONDS)
    copy_and_truncate(log)
    write(log, "three\n")
    assert follower.finish() == ["one", "unfinished two", "three"]


def test_unread_bytes_are_counted(tmp_path: Path, budget: Descriptors) -> None:
    assert budget.most
    log = tmp_path / "app.log"
    write(log, "one\n")
    follower = Follower(log, descriptors=budget)
    follower.settle()
    assert follower.tailer.unread_bytes == 0
    write(log, "two\nthr")
    follower.now += 10
    follower.tailer.watch(follower.now)
    assert follower.tailer.unread_bytes == 7
    follower.settle()
    assert follower.tailer.unread_bytes == 3
    log.unlink()
    follower.finish()
    assert follower.tailer.unread_bytes == 0


def test_unfinished_copy_of_a_closed_file_is_not_read(tmp_path: Path, budget: Descriptors) -> None:
    log, copy = tmp_path / "app.log", tmp_path / "app.log.1"
    write(log, "".join(f"line {number}\n" for number in range(1000)))
    follower = Follower(tmp_path / "app.log*", descriptors=budget)
    lines = follower.settle()
    follower.poll(IDLE_SECONDS)
    assert budget.taken == 0
    copy.write_bytes(log.read_bytes()[:3000])
    assert follower.settle() == lines
    copy.write_bytes(log.read_bytes())
    assert follower.finish() == lines
