"""A side of ``bench kafka``: a process that reads the topic each time it is told so.

It gets lines of words on its standard input, and answers each with a line of JSON: the events that
it has read, and the wall and CPU seconds that they took it and all processes below it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from benches.processes import cpu_seconds, family


@dataclass(frozen=True)
class Reading:
    events: int
    seconds: float
    cpu_seconds: float


def serve(read: Callable[[Sequence[str]], int]) -> None:
    """``read`` gives the number of events that it has read."""
    for line in sys.stdin:
        used, began = _cpu_seconds(), time.monotonic()
        events = read(line.split())
        seconds = time.monotonic() - began
        print(json.dumps(asdict(Reading(events, seconds, _cpu_seconds() - used))), flush=True)


class Side:
    """``python -m benches.MODULE ARGUMENTS``, which calls ``serve``."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"benches.{module}", *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, *words: object) -> None:
        assert self._process.stdin
        print(*words, file=self._process.stdin, flush=True)

    def reading(self) -> Reading:
        """What the side answers next."""
        assert self._process.stdout
        return Reading(**json.loads(self._process.stdout.readline()))

    def read(self, *words: object) -> Reading:
        self.tell(*words)
        return self.reading()

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)


def _cpu_seconds() -> float:
    return sum(cpu_seconds(pid) for pid in family(os.getpid()))
