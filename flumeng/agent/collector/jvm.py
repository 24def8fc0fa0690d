"""Spark's JVM as a child of this process, which PySpark has started."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

MAIN_CLASS = b"org.apache.spark.deploy.SparkSubmit"


def pid() -> int:
    """Return the id of the JVM. Raises ProcessLookupError when this process has none that runs."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if int(parent) == os.getpid() and MAIN_CLASS in command:
                return int(entry.name)
    raise ProcessLookupError("this process has no JVM of Spark")


def wait_for_end() -> None:
    """Wait until the JVM ends; return at once when none runs."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.waitid(os.P_PID, pid(), os.WEXITED | os.WNOWAIT)  # PySpark collects it


def let_go() -> None:
    """Let a suspended JVM continue, so that it ends with this process."""
    with suppress(ProcessLookupError):
        os.kill(pid(), signal.SIGCONT)


def end() -> None:
    """End the JVM in order, as SIGTERM does, and wait for it."""
    with suppress(ProcessLookupError):
        os.kill(pid(), signal.SIGTERM)
    wait_for_end()
