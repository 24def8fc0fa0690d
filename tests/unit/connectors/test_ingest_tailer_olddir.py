"""Logs that are rotated into another folder (logrotate's `olddir`) are read to their ends."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from flumeng.connectors.tail.tailer import IDLE_SECONDS
from tests.testkit.ingest_worker import Follower, write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "old").mkdir()
    return tmp_path / "app.log"


def rotate(log: Path, name: str = "app.log.1") -> Path:
    moved = log.parent / "old" / name
    log.rename(moved)
    return moved


def lines(begin: int, end: int) -> str:
    return "".join(f"a line of the log, number {number}\n" for number in range(begin, end))


def read(follower: Follower) -> list[int]:
    return sorted(int(line.rpartition(" ")[2]) for line in follower.lines)


@pytest.mark.parametrize("globs", ["log", "both", "deep"])
@pytest.mark.parametrize("idle", [False, True])
def test_rest_of_a_file_moved_to_olddir_is_read(log: Path, globs: str, idle: bool) -> None:
    write(log, lines(0, 20))
    follower = follow(log, globs)
    follower.settle()
    if idle:
        follower.settle(seconds=2 * IDLE_SECONDS)
        follower.settle(seconds=2 * IDLE_SECONDS)
    write(log, lines(20, 25))
    moved = rotate(log)
    write(log, lines(25, 30))
    follower.settle()
    write(moved, lines(30, 33))
    follower.settle()
    assert read(follower) == list(range(33)), follower.tailer.tracked.missed
    assert follower.tailer.tracked.missed == 0


@pytest.mark.parametrize("globs", ["both", "deep"])
def test_moved_file_is_found_after_a_stop_where_a_glob_matches_it(log: Path, globs: str) -> None:
    write(log, lines(0, 20))
    follower = follow(log, globs)
    follower.settle()
    write(log, lines(20, 25))
    moved = rotate(log)
    write(log, lines(25, 30))
    follower.crash()
    again = follower
    again.settle()
    write(moved, lines(30, 33))
    again.settle()
    assert read(again) == list(range(33))


@pytest.mark.parametrize("globs", ["both", "deep"])
@pytest.mark.parametrize("stopped", [False, True])
def test_moved_file_is_read_on_where_it_is_compressed(log: Path, globs: str, stopped: bool) -> None:
    write(log, lines(0, 20))
    follower = follow(log, globs)
    follower.settle()
    if not stopped:
        follower.settle(seconds=2 * IDLE_SECONDS)
        follower.settle(seconds=2 * IDLE_SECONDS)
    write(log, lines(20, 25))
    moved = rotate(log)
    write(log, lines(25, 30))
    with gzip.open(f"{moved}.gz", "wb") as packed:
        packed.write(moved.read_bytes())
    moved.unlink()
    if stopped:
        follower.crash()
    again = follower
    again.settle()
    again.settle(seconds=20)
    assert read(again) == list(range(30))
    assert again.tailer.tracked.missed == 0


def follow(log: Path, globs: str) -> Follower:
    meant = {
        "log": [log],
        "both": [log, log.parent / "old" / "*"],
        "deep": [log.parent / "**" / "app.log*"],
    }
    return Follower(*meant[globs])
