"""The processes of a cluster on this host, and what each has cost so far (Linux)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

PARTS = {
    b"flumeng.agent.ingest": "ingest",
    b"flumeng.agent.collector": "collector",
    b"flumeng.agent.node": "node",
    b"flumeng.control.master": "master",
    b"org.apache.zookeeper": "zookeeper",
    b"org.apache.spark": "jvm",
}


@dataclass(frozen=True)
class Processes:
    """``heads``: part -> the process that runs it; what it started belongs to it."""

    heads: dict[str, int]

    @classmethod
    def of(cls, head: int) -> Processes:
        """The descendants of ``head``, recognized by their command lines."""
        found = {"standalone": head}
        for pid in family(head):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:  # it ended meanwhile
                continue
            for mark, part in PARTS.items():
                if mark in command and part not in found:
                    found[part] = pid
                    break
        return cls(found)


def family(pid: int, others: Collection[int] = ()) -> Iterator[int]:
    """A process and its descendants, without those of ``others`` and their descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = children.read_text().split()
        except OSError:  # the thread or its process ended meanwhile
            continue
        for child in map(int, below):
            if child not in others:
                yield from family(child, others)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, with that of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def peak_rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} is gone")


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def rss_mb(pid: int) -> float:
    """Resident megabytes now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return round(kib * 1024 / 1e6, 1)
