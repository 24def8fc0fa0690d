"""Daemons and other processes of tests: how they are started, and whether they live."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.testkit.waiting import wait_for


def module_of(kind: str) -> str:
    """``master``, ``node``, or a child of a node: ``ingest``, ``collector``, ``discovery``."""
    return f"flumeng.{'control' if kind == 'master' else 'agent'}.{kind}"


def start_logged(log: Path, *command: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process whose output is appended to ``log``; ``options`` are those of ``Popen``."""
    with log.open("ab") as output:
        return subprocess.Popen([*map(str, command)], stdout=output, stderr=output, **options)


def freeze(pid: int) -> None:
    """Stop a process with SIGSTOP; returns when that has taken effect."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")


def of_threads(pid: int, file: str) -> Iterator[str]:
    """The contents of ``file`` in /proc of each thread that does not end meanwhile."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            yield (task / file).read_text()


def children_of(pid: int) -> list[int]:
    return [int(child) for text in of_threads(pid, "children") for child in text.split()]


def is_alive(pid: int) -> bool:
    """A process that has ended, and that its parent has not waited for, does not live."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not stat.rpartition(") ")[2].startswith("Z")
