"""Reports that Spark still starts, as long as its processes work: a busy host may need minutes. The
node ends a collector that reports nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flumeng.agent.node.protocol import Message

REPORT_SECONDS = 10.0
LEAST_SHARE = 0.02
"""Least processor time per second of a start that makes progress; an idle JVM takes a tenth."""
LEAST_READ_BYTES = 64 << 10
"""Reading so much counts as progress too: a slow disk leaves the processor idle."""
MOST_SECONDS = 1800.0
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Work:
    """Work of this process and of its children since their start."""

    cpu_seconds: float
    read_bytes: int

    def is_ahead_of(self, before: Work) -> bool:
        """Whether at least one of both amounts has grown enough in ``REPORT_SECONDS``."""
        cpu_seconds = self.cpu_seconds - before.cpu_seconds
        read_bytes = self.read_bytes - before.read_bytes
        return cpu_seconds >= LEAST_SHARE * REPORT_SECONDS or read_bytes >= LEAST_READ_BYTES


def report(
    send: Callable[[Message], None],
    starting: Future[object],
    measure: Callable[[], Work] = lambda: work(os.getpid()),
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Send ``alive`` every ``REPORT_SECONDS`` in which there was progress, until ``starting`` is
    done or ``MOST_SECONDS`` are over."""
    before, seconds = measure(), 0.0
    while seconds < MOST_SECONDS:
        wait(REPORT_SECONDS)
        seconds += REPORT_SECONDS
        if starting.done():
            return
        now = measure()
        if now.is_ahead_of(before):
            send({"type": "alive", "held": f"Spark starts since {seconds:.0f} s"})
        before = now


def work(pid: int) -> Work:
    """Return the work of a process and of all below it; of ended ones as far as it is known."""
    cpu_seconds, read_bytes = 0.0, 0
    for each in (pid, *_below(pid)):
        folder = Path(f"/proc/{each}")
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            cpu_seconds += sum(map(int, fields[11:15])) * TICK_SECONDS
            counts = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
            read_bytes += int(counts["rchar"])
    return Work(cpu_seconds, read_bytes)


def _below(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _below(child)
