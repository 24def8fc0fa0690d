"""Ends all processes of a test run when the run is over, also when it was killed.

Every process that tests start inherits ``FLUMENG_TEST_RUN``, an id that no other run has. A process
beside the run waits for the end of the run, and then ends all processes that still have that id.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

VARIABLE = "FLUMENG_TEST_RUN"
SECONDS = 10.0
"""A process in the kernel may take a moment to go, and may start another one meanwhile."""


def pytest_configure(config: pytest.Config) -> None:
    """For workers of xdist the controller does it."""
    if hasattr(config, "workerinput"):
        return
    run = uuid.uuid4().hex
    subprocess.Popen(
        [sys.executable, __file__, str(os.getpid()), run],
        env={name: value for name, value in os.environ.items() if name != VARIABLE},
        start_new_session=True,  # Ctrl-C in a terminal is for the run alone
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ[VARIABLE] = run


def processes_of(run: str) -> Iterator[int]:
    """The pids of all processes of the run."""
    mark = f"{VARIABLE}={run}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def main(parent: int, run: str) -> None:
    with suppress(ProcessLookupError):  # it ended before this process looked
        select.select([os.pidfd_open(parent)], [], [])
    deadline = time.monotonic() + SECONDS
    while (left := list(processes_of(run))) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
