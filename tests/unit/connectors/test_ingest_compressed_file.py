"""Compressed files beside a log: their unread lines are read, and nothing is read twice."""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.connectors.tail import compressed_file, tailed_file
from flumeng.connectors.tail.file_position import cursors
from flumeng.connectors.tail.tailer import QUIET_SECONDS
from tests.testkit.ingest_worker import Follower, write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def pack(path: Path, suffix: str) -> Path:
    """Compress as a rotation does: the compressed file appears, then the other one is removed."""
    compressed = path.with_name(path.name + suffix)
    data = path.read_bytes()
    if suffix == ".gz":
        compressed.write_bytes(gzip.compress(data))
    elif suffix == ".bz2":
        compressed.write_bytes(bz2.compress(data))
    else:
        codec = {".zst": "zstd", ".lz4": "lz4"}[suffix]
        compressed.write_bytes(pa.compress(data, codec=codec, asbytes=True))
    path.unlink()
    return compressed


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".lz4", ".bz2"])
def test_file_compressed_while_the_worker_is_down_is_read_to_the_end(
    log: Path, suffix: str
) -> None:
    """With the same identity and offsets; and nothing of it is read twice, under any name."""
    write(log, "1\n" * 1000)
    follower = Follower(log.with_name("app.log*"))
    follower.settle()
    write(log, "2\nlast words")
    inode = follower.attrs(0)["inode"]
    rotated = log.with_name("app.log.1")
    log.rename(rotated)
    compressed = pack(rotated, suffix)
    write(log, "new\n")
    follower.crash()
    follower.settle(seconds=QUIET_SECONDS)
    assert sorted(follower.lines[1000:]) == ["2", "last words", "new"]
    row = follower.lines.index("last words")
    assert follower.attrs(row) == {
        "source": "tail", "path": str(log), "inode": inode, "offset": "2002",
    }  # fmt: skip
    compressed.rename(log.with_name("app.log.2" + suffix))
    follower.crash()
    assert len(follower.settle(seconds=QUIET_SECONDS)) == 1003
    assert follower.tailer.tracked.skipped == 1
    assert len(cursors(follower.state)) == 1


@pytest.mark.parametrize("text", ["", "-", "-\n", "longer than that\n"])
def test_compressed_file_is_finished_though_another_file_has_its_inode(
    log: Path, text: str
) -> None:
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    write(log, "2\n")
    log.with_name("app.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    strange = log.rename(log.with_name("strange"))
    strange.write_text(text)
    follower.crash()
    assert follower.finish() == ["1", "2"]
    assert follower.state == {}


def test_reading_a_compressed_file_resumes_after_a_crash(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the way to the cursor takes several looks."""
    monkeypatch.setattr(compressed_file, "SKIP_BYTES", 1)
    monkeypatch.setattr(compressed_file, "_UNPACK_BYTES", 1000)
    monkeypatch.setattr(tailed_file, "READ_BYTES", 700)
    lines = [f"line {number}" for number in range(5000)]
    write(log, "\n".join(lines[:1000]) + "\n")
    follower = Follower(log)
    follower.settle()
    write(log, "\n".join(lines[1000:]))
    pack(log, ".gz")
    for _ in range(6):
        follower.crash()
        for _ in range(100):
            follower.poll()
            follower.commit(1)
    for _ in range(1000):
        follower.poll()
    follower.settle(seconds=QUIET_SECONDS)
    assert follower.lines == lines
    assert follower.state == {}


def test_compressed_files_of_other_files_are_left_alone(tmp_path: Path) -> None:
    """They begin in the same way, are damaged, or are shorter than the part that was read."""
    head = "the same first line of every file, longer than a mark\n" * 6
    log, other = tmp_path / "a.log", tmp_path / "other"
    write(log, head + "one\ntwo\n")
    follower = Follower(tmp_path / "*.log*")
    follower.settle()
    read = list(follower.lines)
    log.unlink()
    for text in (head + "ONE\ntwo\nnot this\n", head, "else\n"):
        write(other, text)
        pack(other, ".gz").rename(tmp_path / f"{len(text)}.log.gz")
    (tmp_path / "damaged.log.gz").write_bytes(gzip.compress(b"x" * 10_000)[:-20])
    (tmp_path / "no.log.gz").write_bytes(b"plain")
    follower.crash()
    assert follower.settle(seconds=QUIET_SECONDS) == read
    assert follower.state == {}
    assert follower.tailer.tracked.skipped == 5
    assert follower.tailer.unreadable == {}


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_file_is_recognised_by_its_first_bytes_too(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "a.log").write_bytes(compress(b"no\nlines\n"))
    write(tmp_path / "b.log", "BZhang logged in\n")
    follower = Follower(tmp_path / "*.log")
    assert follower.settle(seconds=QUIET_SECONDS) == ["BZhang logged in"]
    assert follower.tailer.tracked.skipped == 1


def test_a_log_that_takes_the_inode_of_a_compressed_file_is_read(log: Path) -> None:
    """Between two looks the one was deleted and the other one made."""
    follower = Follower(log.with_name("app.log*"))
    compressed = log.with_name("app.log.1.gz")
    compressed.write_bytes(gzip.compress(b"1\n"))
    assert follower.settle() == []
    compressed.rename(log)
    log.write_text("2\n")
    assert follower.settle() == ["2"]


def test_compressed_file_is_skipped_once_under_all_its_names(log: Path) -> None:
    follower = Follower(log.with_name("app.log*"))
    compressed = log.with_name("app.log.1")
    compressed.write_bytes(gzip.compress(b"1\n"))
    for number in range(2, 5):
        assert follower.settle() == []
        compressed = compressed.rename(log.with_name(f"app.log.{number}"))
    assert follower.settle() == []
    assert follower.tailer.tracked.skipped == 1


@pytest.mark.slow
def test_damaged_copy_of_an_unfinished_file_is_reported_until_it_is_whole(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    write(log, "".join(f"{number}\n" for number in range(200_000)))
    copy = pack(log, ".gz")
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-1000])
    follower.crash()
    follower.settle(seconds=QUIET_SECONDS)
    assert list(follower.tailer.unreadable) == [str(copy)]
    assert caplog.text.count(f"cannot read {copy}, retrying: ") == 1
    copy.write_bytes(whole)
    for _ in range(3):
        follower.settle(seconds=QUIET_SECONDS)
    assert follower.lines == ["1", *map(str, range(200_000))]
    assert follower.tailer.unreadable == {}
    assert caplog.text.count(f"file {copy} is readable again") == 1


@pytest.mark.slow
def test_unreadable_compressed_file_is_named(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(log, "1\n")
    follower = Follower(log)
    follower.settle()
    write(log, "2\n")
    copy = pack(log, ".gz")
    follower.crash()
    follower.tailer._following.allows = lambda path: path != str(copy)
    follower.settle(seconds=QUIET_SECONDS)
    why = "this node's policy file does not allow it"
    assert f"cannot read {copy}, which may have unread lines of {log}: {why}" in caplog.text
