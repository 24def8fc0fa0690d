"""Text of files: holes, encodings, and a last line without newline."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flumeng.connectors.tail.tailer import QUIET_SECONDS
from tests.testkit.ingest_worker import Follower, copy_and_truncate, write

HOUR = 3600.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def offsets(follower: Follower) -> list[int]:
    return [int(follower.attrs(row)["offset"]) for row in range(len(follower.events))]


@pytest.mark.parametrize(("size", "lines"), [(300, 3), (3_000_000, 200)])
def test_holes_of_a_truncated_log_are_skipped(log: Path, size: int, lines: int) -> None:
    """The program writes on at its old place, so that NULs fill the file up to there."""
    follower = Follower(log)
    written, holes = [], 0
    with log.open("wb", buffering=0) as program:
        for rotation in range(4):
            for number in range(lines):
                line = f"{rotation} {number} " + "x" * (size // lines)
                program.write(line.encode() + b"\n")
                written.append(line)
            follower.settle()
            if rotation < 3:
                copy_and_truncate(log)
                holes += program.tell()
            follower.settle(1)
    assert sorted(follower.finish()) == sorted(written)
    assert follower.tailer.hole_bytes == holes
    assert (follower.truncated, follower.tailer.cut, follower.tailer.tracked.missed) == (0, 0, 0)


def test_nuls_between_lines_are_skipped_and_offsets_stay_those_of_the_file(log: Path) -> None:
    """As after a crash of the host; within a line they are data."""
    log.write_bytes(b"one\n\0\0\0\0two\n\0three\nfo\0ur\n")
    follower = Follower(log)
    assert follower.settle() == ["one", "two", "three", "fo\0ur"]
    assert offsets(follower) == [0, 8, 13, 19]
    assert follower.tailer.hole_bytes == 5


def test_a_program_may_write_into_space_that_it_has_allocated(log: Path) -> None:
    log.write_bytes(b"one\n" + bytes(100))
    follower = Follower(log)
    assert follower.settle() == ["one"]
    with log.open("r+b") as program:
        program.seek(4)
        program.write(b"two\n")
        program.truncate(200)
    os.utime(log, (1, 1))
    assert follower.settle() == ["one", "two"]
    assert follower.tailer.hole_bytes == 0


def test_a_hole_that_is_read_on_after_a_crash_is_skipped_once(log: Path) -> None:
    log.write_bytes(b"one\n" + bytes(5_000_000) + b"two\n")
    follower = Follower(log)
    follower.poll()
    follower.commit()
    follower.crash()
    assert follower.settle() == ["one", "two"]
    assert offsets(follower) == [0, 5_000_004]


@pytest.mark.parametrize(
    ("encoding", "codec", "mark"),
    [
        ("utf-8", "utf-8", b"\xef\xbb\xbf"),
        ("utf-8", "utf-16-le", b"\xff\xfe"),
        ("utf-8", "utf-16-be", b"\xfe\xff"),
        ("utf-16", "utf-16-le", b"\xff\xfe"),
        ("utf-16", "utf-16-be", b"\xfe\xff"),
        ("utf-16", "utf-16-le", b""),
        ("utf-16-le", "utf-16-le", b""),
        ("utf-16-be", "utf-16-be", b""),
        ("latin-1", "latin-1", b""),
        ("windows-1252", "windows-1252", b""),
    ],
)
def test_files_of_other_encodings_are_read_as_utf_8(
    log: Path, encoding: str, codec: str, mark: bytes
) -> None:
    follower = Follower(log, encoding=encoding)
    lines = ["grün", "", "Ċ" if codec.startswith("utf") else "ê", "Größe: 7", "end"]
    data = mark + "\r\n".join([*lines, ""]).encode(codec)
    for begin in range(0, len(data), 5):  # ends within lines and characters
        with log.open("ab") as program:
            program.write(data[begin : begin + 5])
        follower.poll()
        if begin % 3 == 0:
            follower.commit()
            follower.crash()
    assert follower.settle() == lines
    places, at = [], len(mark)
    for line in lines:
        places.append(at)
        at += len(f"{line}\r\n".encode(codec))
    assert offsets(follower) == places


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("mark", [False, True])
@pytest.mark.parametrize(
    ("old", "half", "rest"),
    [
        ("old\n", 0, "new\n"),
        ("", 0, "new\n"),
        ("old\n", 1, "new\n"),
        ("no newl", 0, "ine\nnew\n"),
        ("no newl", 1, "ine\nnew\n"),
        ("Ċ", 0, " no newline\nnew\n"),
    ],
)
def test_start_from_the_end_of_a_file_in_utf_16(
    log: Path, codec: str, old: str, half: int, rest: str, *, mark: bool
) -> None:
    """``half``: the first byte of the rest is there before."""
    before, after = f"{chr(0xFEFF) * mark}{old}".encode(codec), rest.encode(codec)
    log.write_bytes(before + after[:half])
    follower = Follower(log, encoding="utf-8" if mark else codec, start_from="end")
    follower.settle()
    with log.open("ab") as program:
        program.write(after[half:])
    assert follower.settle() == ["new"]


def test_byte_order_mark_is_skipped_in_each_generation(log: Path) -> None:
    follower = Follower(log)
    for generation in range(3):
        log.write_bytes(b"\xef\xbb\xbf" + b'{"a":%d}\n' % generation)
        follower.settle()
        log.rename(log.with_name(f"app.log.{3 - generation}"))
        follower.settle()
    assert follower.finish() == ['{"a":0}', '{"a":1}', '{"a":2}']


def test_invalid_utf_8_bytes_are_kept(log: Path) -> None:
    log.write_bytes(b"\xff\n\xfe\n")
    follower = Follower(log)
    follower.poll()
    follower.commit()
    assert [event["body"] for event in follower.events] == [b"\xff", b"\xfe"]


def test_holes_in_utf_16_are_skipped(log: Path) -> None:
    text = "one\n".encode("utf-16-be")
    log.write_bytes(text + bytes(1001 * 2) + "two\n".encode("utf-16-be"))
    follower = Follower(log, encoding="utf-16-be")
    assert follower.settle() == ["one", "two"]
    assert offsets(follower) == [0, len(text) + 2002]


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_overlong_lines_in_utf_16_that_grow_by_half_characters(log: Path, codec: str) -> None:
    data = f"{'x' * 3000}\nnext\nmore\n".encode(codec)
    follower = Follower(log, encoding=codec, max_line_bytes=1024)
    for begin in range(0, len(data), 501):
        with log.open("ab") as program:
            program.write(data[begin : begin + 501])
        follower.settle()
        assert follower.poll() == 0
    assert [line[:5] for line in follower.lines] == ["xxxxx", "next", "more"]
    assert follower.tailer.unread_bytes == 0


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_last_line_in_utf_16_is_taken_without_half_a_character(log: Path, codec: str) -> None:
    data = "last\nnext\n".encode(codec)
    log.write_bytes(data[:7])
    follower = Follower(log, encoding=codec, last_line_seconds=60)
    follower.settle()
    assert follower.settle(61) == ["las"]
    with log.open("ab") as program:
        program.write(data[7:])
    assert follower.settle() == ["las", "t", "next"]


def test_unfinished_last_line_is_read_after_last_line_seconds(log: Path) -> None:
    log.write_text("started\nresult: FAILED")
    follower = Follower(log, last_line_seconds=60)
    assert follower.settle() == ["started"]
    follower.settle(59)
    assert follower.lines == ["started"]
    follower.settle(2)
    assert follower.lines == ["started", "result: FAILED"]
    assert follower.tailer.unread_bytes == 0


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(
    ("rest", "expected"),
    [("\nnext\n", ["next"]), ("\r\nnext\n", ["next"]), (" or not\n", [" or not"]), ("\n\n", [""])],
)
def test_line_after_taken_last_line_is_a_line_of_its_own(
    log: Path, rest: str, expected: list[str], *, crash: bool
) -> None:
    write(log, "result: FAILED")
    follower = Follower(log, last_line_seconds=60)
    follower.settle()
    follower.settle(61)
    if crash:
        follower.crash()
    for character in rest:
        write(log, character)
        follower.settle()
    assert follower.lines == ["result: FAILED", *expected]


def test_last_line_of_a_closed_file_is_taken_too(log: Path) -> None:
    """Quiet files are closed before that."""
    log.write_text("started\nresult: FAILED")
    follower = Follower(log)
    for _ in range(100):
        follower.settle(60)
    assert follower.lines == ["started", "result: FAILED"]


def test_restarted_worker_waits_again_for_the_end_of_a_line(log: Path) -> None:
    write(log, "resu")
    follower = Follower(log)
    follower.now = 10 * HOUR
    follower.settle()
    follower.crash()
    follower.settle()
    write(log, "lt\n")
    assert follower.settle() == ["result"]


def test_last_line_without_a_timeout_waits_for_its_newline(log: Path) -> None:
    log.write_text("started\nresult: FAILED")
    follower = Follower(log, last_line_seconds=0)
    for _ in range(30):
        follower.settle(HOUR)
    assert follower.lines == ["started"]
    write(log, "\n")
    assert follower.settle() == ["started", "result: FAILED"]


def test_excluded_files_are_not_followed(tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "debug.log"):
        write(tmp_path / name, f"{name}\n")
    follower = Follower(tmp_path / "*.log", exclude=(f"{tmp_path}/{{debug,b}}*.log",))
    assert follower.settle() == ["a.log"]
    (tmp_path / "a.log").rename(tmp_path / "debug-1.log")
    write(tmp_path / "debug-1.log", "more\n")
    assert follower.settle() == ["a.log", "more"]


def test_a_rotated_copy_that_is_excluded_is_still_read_for_its_log(log: Path) -> None:
    write(log, "0\n")
    follower = Follower(log.with_name("app.log*"), exclude=(f"{log}.*",))
    follower.settle()
    write(log, "1\n")
    log.rename(log.with_name("app.log.1"))
    write(log, "2\n")
    log.rename(log.with_name("app.log.0"))
    write(log, "3\n")
    assert sorted(follower.finish()) == ["0", "1", "2", "3"]


def test_globs_have_braces_and_any_folders(tmp_path: Path) -> None:
    for name in ("x/a.log", "x/y/z/b.log", "c.log", "x/d.txt", ".hidden/e.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, f"{name}\n")
    (tmp_path / "x" / "again").symlink_to(tmp_path)
    (tmp_path / "x" / "twice").symlink_to(tmp_path)
    follower = Follower(tmp_path / "**" / "*.{log,txt}")
    assert sorted(follower.settle()) == ["c.log", "x/a.log", "x/d.txt", "x/y/z/b.log"]


def test_a_glob_that_can_match_nothing_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "file", "")
    paths = [tmp_path / "file" / "*.log", tmp_path / "none" / "*.log", tmp_path / "*.log"]
    follower = Follower(*paths)
    follower.settle()
    follower.settle()
    assert follower.tailer.unsearched == {f"{tmp_path}/file": "Not a directory"}
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == f"directory {tmp_path}/none does not exist: globs in it match no file"
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    follower.settle(1)
    assert follower.tailer.unsearched == {}


def test_copy_of_a_log_with_a_byte_order_mark_is_recognised(log: Path) -> None:
    log.write_bytes(b"\xef\xbb\xbf" + b"one\n")
    follower = Follower(log.with_name("app.log*"))
    follower.settle()
    shutil.copyfile(log, log.with_name("app.log.1"))
    follower.settle(QUIET_SECONDS)
    assert follower.finish() == ["one"]
