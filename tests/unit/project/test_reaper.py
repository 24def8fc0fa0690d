"""A test run leaves no process behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testkit.daemons import is_alive
from tests.testkit.waiting import wait_for

TOP = Path(__file__).parents[3]
SECONDS = 60.0
HANGS = """
import subprocess, time
def test_hangs():
    started = subprocess.Popen(["sleep", "300"], start_new_session=True)
    open({file!r}, "w").write(str(started.pid))
    time.sleep(0 if {passes} else 300)
"""


def number_in(file: Path) -> int:
    wait_for(lambda: file.exists() and file.read_text())
    return int(file.read_text())


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, None])
@pytest.mark.slow
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
        # A shell starts what runs in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  no threads here
    ) as run:
        started = number_in(file)
        if end is not None:
            assert is_alive(started)
            run.send_signal(end)
        run.wait(SECONDS)
    wait_for(lambda: not is_alive(started), "it lives on")
