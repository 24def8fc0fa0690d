"""A file behind a link is rotated under its own name, in its own folder."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest

from tests.testkit.ingest_worker import Follower, write

LINE = "line %d of the log, long enough to be recognized\n"
STYLES = [  # log, first generation, second generation
    ("0.log", "0.log.20261120-091112", "0.log.20261120-101112"),  # kubelet
    ("ab12-json.log", "ab12-json.log.2", "ab12-json.log.1"),  # docker
    ("app.log", "app.log-20261120", "app.log-20261121"),  # logrotate, dateext
    ("app.log", "app.log.2026-11-20", "app.log.2026-11-21"),  # log4j
    ("app.log", "app.log.2026-11-20_09-11-12", "app.log.2026-11-20_10-11-12"),  # python
    ("app.log", "app.log.20261120T091112Z", "app.log.20261120T101112Z"),
    ("app.log", "app.log.2026-11-20T09:11:12+01:00", "app.log.2026-11-20T10:11:12+01:00"),
    ("app.log", "app-2026-11-20T09-11-12.000.log", "app-2026-11-20T10-11-12.000.log"),  # lumberjack
    ("app.log", "app.2026-11-20.0.log", "app.2026-11-20.1.log"),  # logback
    ("app.log", "app-20261120.log", "app-20261121.log"),
    ("app.log", "app20261120.log", "app20261121.log"),  # serilog
    ("app.log", "app__2026-11-20_09-11-12.log", "app__2026-11-20_10-11-12.log"),  # pm2
    ("app.log", "app.2.log", "app.1.log"),  # logback, fixed window
    ("app.log", "app-2.log", "app-1.log"),  # log4j2
    ("app.log", "app.log.001", "app.log.002"),
    ("current", "@4000000065f1a2b30c1d2e3f.s", "@4000000065f1b2b30c1d2e3f.s"),  # svlogd
]


def links(folder: Path, log: str, kind: str) -> tuple[Path, Path]:
    """The path of the log, and the path under which it is followed."""
    real = folder / "real" / log
    real.parent.mkdir()
    found = folder / "links" / f"pod_ns_{log}"
    if kind == "none":
        return real, real
    found.parent.mkdir()
    if kind == "folder":
        found.parent.rmdir()
        found.parent.symlink_to(real.parent)
        return real, found.parent / log
    if kind == "two links":
        between = folder / "pods" / f"ns_pod_{log}"
        between.parent.mkdir()
        between.symlink_to(real)
        found.symlink_to(between)
    else:
        found.symlink_to(real)
    return real, found


def numbers(follower: Follower) -> list[int]:
    return sorted(int(line.split()[1]) for line in follower.lines)


def write_numbered(path: Path, first: int, last: int, second: int) -> None:
    write(path, "".join(LINE % number for number in range(first, last)))
    os.utime(path, (1.7e9 + second, 1.7e9 + second))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "link", "two links", "folder"])
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize(("log", "first", "second"), STYLES)
def test_log_rotated_twice_between_two_looks_is_read_completely(
    tmp_path: Path, log: str, first: str, second: str, kind: str, *, down: bool
) -> None:
    real, found = links(tmp_path, log, kind)
    write_numbered(real, 0, 10, 0)
    follower = Follower(found)
    follower.settle()
    write_numbered(real, 10, 12, 1)
    if down:
        follower.crash()
    real.rename(real.with_name(first))
    write_numbered(real, 12, 20, 2)
    real.rename(real.with_name(second))
    write_numbered(real, 20, 21, 3)
    follower.finish()
    assert numbers(follower) == list(range(21))
    assert (follower.tailer.tracked.missed, follower.tailer.cut) == (0, 0)
    assert {follower.attrs(row)["path"] for row in range(21)} == {str(found)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "link", "two links", "folder"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("log", "copy", "_"), STYLES)
def test_lines_cut_off_unread_are_read_from_the_copy(
    tmp_path: Path, log: str, copy: str, _: str, kind: str, *, packed: bool
) -> None:
    real, found = links(tmp_path, log, kind)
    write_numbered(real, 0, 10, 0)
    follower = Follower(found)
    follower.settle()
    write_numbered(real, 10, 12, 1)
    if packed:
        real.with_name(f"{copy}.gz").write_bytes(gzip.compress(real.read_bytes()))
    else:
        shutil.copyfile(real, real.with_name(copy))
    os.truncate(real, 0)
    write_numbered(real, 12, 13, 2)
    follower.finish()
    assert numbers(follower) == list(range(13))
    assert (follower.tailer.tracked.missed, follower.tailer.cut) == (0, 0)


@pytest.mark.parametrize("kind", ["none", "link", "two links", "folder"])
@pytest.mark.parametrize(("log", "moved", "_"), STYLES)
def test_a_file_found_and_rotated_before_it_was_read_is_read(
    tmp_path: Path, log: str, moved: str, _: str, kind: str
) -> None:
    real, found = links(tmp_path, log, kind)
    write_numbered(real, 0, 10, 0)
    follower = Follower(found)
    follower.watch()
    real.rename(real.with_name(moved))
    write_numbered(real, 10, 12, 1)
    follower.crash()
    follower.finish()
    assert numbers(follower) == list(range(12))


def test_generations_of_the_former_target_of_a_link_are_read(tmp_path: Path) -> None:
    """The container was restarted after its log was rotated twice."""
    real, found = links(tmp_path, "0.log", "link")
    write_numbered(real, 0, 10, 0)
    follower = Follower(found)
    follower.settle()
    real.rename(real.with_name("0.log.20261120-091112"))
    write_numbered(real, 10, 12, 1)
    real.rename(real.with_name("0.log.20261120-101112"))
    write_numbered(real, 12, 13, 2)
    found.unlink()
    found.symlink_to(real.with_name("1.log"))
    write_numbered(real.with_name("1.log"), 13, 15, 3)
    follower.finish()
    assert numbers(follower) == list(range(15))
    assert follower.tailer.tracked.missed == 0


def test_positions_of_an_older_version_get_the_file_name_behind_the_link(tmp_path: Path) -> None:
    real, found = links(tmp_path, "0.log", "link")
    write_numbered(real, 0, 10, 0)
    follower = Follower(found)
    follower.settle()
    for value in follower.state.values():
        assert isinstance(value, dict)
        del value["file_name"]
    follower.crash()
    follower.settle()
    write_numbered(real, 10, 12, 1)
    shutil.copyfile(real, real.with_name("0.log.20261120-091112"))
    os.truncate(real, 0)
    write_numbered(real, 12, 13, 2)
    follower.finish()
    assert numbers(follower) == list(range(13))


def test_files_of_other_programs_beside_a_rotated_log_are_left_alone(tmp_path: Path) -> None:
    """Their names look like generations, but no generation of this log is called so."""
    log = tmp_path / "app.log"
    write_numbered(log, 0, 10, 0)
    follower = Follower(log)
    follower.settle()
    log.rename(tmp_path / "app.log.1")
    write_numbered(tmp_path / "app-2.log", 50, 60, 3)
    write_numbered(tmp_path / "app-error.log", 60, 70, 3)
    write_numbered(log, 10, 12, 4)
    follower.finish()
    assert numbers(follower) == list(range(12))
