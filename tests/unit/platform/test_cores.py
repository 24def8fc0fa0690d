"""Cores are counted from affinity and cgroup files as Java counts them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flumeng.platform import cores

ALL = len(os.sched_getaffinity(0))
PERIOD = 100_000
V2 = "31 23 0:26 {root} {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 {root} {mount} rw - cgroup cgroup rw,cpu,cpuacct"
MEMORY = "33 31 0:30 / /nowhere rw - cgroup cgroup rw,memory"
HALF = {"cpu.max": f"{PERIOD // 2} {PERIOD}"}
UNLIMITED = {"cpu.max": f"max {PERIOD}"}
OLD_HALF = {"cpu.cfs_quota_us": f"{PERIOD // 2}", "cpu.cfs_period_us": f"{PERIOD}"}
OLD_UNLIMITED = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": f"{PERIOD}"}


def proc(
    directory: Path, mount: str, root: str, group: str, files: dict[str, dict[str, str]]
) -> Path:
    """Return fake files of /proc/self; ``files``: texts by name and directory below the mount."""
    (directory / "mountinfo").write_text(
        "\n".join([MEMORY, mount.format(root=root, mount=directory / "mount")])
    )
    (directory / "cgroup").write_text(f"4:memory:/elsewhere\n{group}\n")
    for place, texts in files.items():
        (directory / "mount" / place).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / "mount" / place / name).write_text(f"{text}\n")
    return directory


@pytest.mark.parametrize(
    ("mount", "root", "group", "files", "expected"),
    [
        (V2, "/", "0::/a/b", {"a/b": HALF, "a": UNLIMITED}, 1),
        (V2, "/", "0::/a/b", {"a/b": UNLIMITED, "a": HALF}, 1),
        (V2, "/", "0::/", {".": HALF}, 1),
        (V2, "/", "0::/a", {"a": UNLIMITED}, ALL),
        (V2, "/", "0::/a", {"a": {"cpu.max": f"{1000 * PERIOD} {PERIOD}"}}, ALL),
        (V2, "/", "0::/a", {"a": {"cpu.max": "?"}}, ALL),
        (V2, "/", "0::/a", {"a": {}, "b": HALF}, ALL),
        (V1, "/", "3:cpu,cpuacct:/a", {"a": OLD_HALF}, 1),
        (V1, "/", "3:cpu,cpuacct:/a", {"a": OLD_UNLIMITED}, ALL),
        (V1, "/docker/x", "3:cpu,cpuacct:/docker/x", {".": OLD_HALF}, 1),
        (V1, "/docker/x", "3:cpu,cpuacct:/", {".": OLD_HALF}, 1),
    ],
)
def test_lowest_quota_of_the_cgroup_and_its_parents_counts(
    tmp_path: Path,
    *,
    mount: str,
    root: str,
    group: str,
    files: dict[str, dict[str, str]],
    expected: int,
) -> None:
    assert cores.available({}, proc(tmp_path, mount, root, group, files)) == expected


def test_quota_is_rounded_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    files = {"a": {"cpu.max": f"{PERIOD * 5 // 2} {PERIOD}"}}
    assert cores.available({}, proc(tmp_path, V2, "/", "0::/a", files)) == 3


def test_host_without_cgroups_has_the_cores_of_the_affinity(tmp_path: Path) -> None:
    assert cores.available({}, tmp_path) == ALL


def test_option_of_java_has_precedence(tmp_path: Path) -> None:
    given = {"JDK_JAVA_OPTIONS": "-Xss2m -XX:ActiveProcessorCount=17"}
    assert cores.available(given, proc(tmp_path, V2, "/", "0::/a", {"a": HALF})) == 17
