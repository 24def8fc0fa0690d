"""A test run leaves no process behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
SECONDS = 60.0
HANGS = """
import subprocess, time
def test_hangs():
    started = subprocess.Popen(["sleep", "300"], start_new_session=True)
    open({file!r}, "w").write(str(started.pid))
    time.sleep(0 if {passes} else 300)
"""


def wait_for(file: Path) -> int:
    deadline = time.monotonic() + SECONDS
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(file.read_text())


def lives(pid: int) -> bool:
    """A process that ended and that its parent has not waited for is no more."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, None])
def test_run_that_ends_leaves_no_process(tmp_path: Path, end: signal.Signals | None) -> None:
    file = tmp_path / "pid"
    (tmp_path / "test_hangs.py").write_text(HANGS.format(file=str(file), passes=end is None))
    command = ["-m", "pytest", "-p", "tests.reaper", "-c", os.devnull, tmp_path / "test_hangs.py"]
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        started = wait_for(file)
        if end is not None:
            assert lives(started)
            run.send_signal(end)
        run.wait(SECONDS)
    deadline = time.monotonic() + SECONDS
    while lives(started):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.05)
