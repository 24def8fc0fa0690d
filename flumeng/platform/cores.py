"""Processor cores of this process, counted as Java counts them: CPU affinity and cgroup quotas."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from flumeng.platform.java import VARIABLES

_GIVEN = re.compile(r"-XX:ActiveProcessorCount=([1-9]\d*)\b")


def available(environment: Mapping[str, str] = os.environ, proc: Path = Path("/proc/self")) -> int:
    """Return the number of cores. A cgroup's quota is rounded up, and the lowest one counts. Java's
    option ActiveProcessorCount in ``environment`` has precedence, as in Java."""
    given = [_GIVEN.findall(environment.get(name, "")) for name in VARIABLES]
    if counts := [count for found in given for count in found]:
        return int(counts[-1])
    return min([len(os.sched_getaffinity(0)), *map(math.ceil, _quotas(proc))])


def _quotas(proc: Path) -> Iterator[float]:
    """Yield the quotas in cores of this process's cgroup, v1 or v2, and of its parents, which Java
    before 24 ignores."""
    with suppress(OSError):
        groups = {
            controller: path
            for line in (proc / "cgroup").read_text().splitlines()
            for _, controllers, path in [line.split(":", 2)]
            for controller in controllers.split(",")
        }
        for line in (proc / "mountinfo").read_text().splitlines():
            place, _, kind = line.partition(" - ")
            root, mount = place.split()[3:5]
            kind, _, options = kind.split()[:3]
            controller = "cpu" if kind == "cgroup" else ""
            if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
                yield from _limits(Path(mount), root, groups.get(controller, root))


def _limits(mount: Path, root: str, group: str) -> Iterator[float]:
    """Yield the quotas from ``group`` up to ``mount``, which shows ``root`` of the hierarchy."""
    inside = Path(group).is_relative_to(root)
    directory = mount / Path(group).relative_to(root) if inside else mount
    while directory.is_relative_to(mount):
        with suppress(OSError, ValueError):
            quota, period = _quota(directory)
            if quota > 0 and period > 0:
                yield quota / period
        directory = directory.parent


def _quota(directory: Path) -> tuple[int, int]:
    """Return quota and period in microseconds. Raises OSError, and ValueError without a limit."""
    file = directory / "cpu.max"
    if file.exists():
        quota, period = file.read_text().split()
        return int(quota), int(period)
    names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
    quota, period = ((directory / name).read_text() for name in names)
    return int(quota), int(period)
