"""`flumeng flow test` with a step of Spark, in a JVM that a command before has started."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.agent.dryrun import spark_keeper
from flumeng.platform.processes import PYTHON
from tests.testkit.daemons import is_alive
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

FLOW = """\
flow: web
sources: [{syslog: {listen: "127.0.0.1:0"}}]
filters:
  - parse: {format: syslog}
  - sql: "SELECT *, count(*) OVER (PARTITION BY host) AS n FROM events WHERE severity <= 4"
sinks: [noop]
"""
CASES = """\
flow: web.yaml
cases:
  - name: right
    input: ["<34>1 2026-01-01T10:15:03.003Z web1 su - - - failed", "<38>dropped"]
    expect: [{host: web1, n: 1}]
  - name: wrong
    input: ["<34>1 2026-01-01T10:15:03.003Z web1 su - - - failed"]
    expect: [{host: web1, n: 2}]
"""
FLUMENG = (sys.executable, "-P", "-c", "from cli.main import main; main()")


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A directory of a user's for running processes; no keeper in it outlives the test."""
    directory = Path(tempfile.mkdtemp(prefix="flumeng-"))  # short, as names of sockets have to be
    yield directory
    if pid := keeper(directory):
        java = children(pid)
        os.kill(pid, signal.SIGTERM)
        wait_for_end(pid, *java)
    shutil.rmtree(directory)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "web.yaml").write_text(FLOW)
    (tmp_path / "web.test.yaml").write_text(CASES)
    return tmp_path


def run(folder: Path, runtime: Path | None, **more: str) -> tuple[int, str]:
    environment = {**os.environ, **more}
    environment.pop(spark_keeper.RUNTIME_VARIABLE, None)
    environment.pop("PYSPARK_PYTHON", None)  # workers use this Python anyway
    if runtime is not None:
        environment[spark_keeper.RUNTIME_VARIABLE] = str(runtime)
    done = subprocess.run(
        [*FLUMENG, "flow", "test", "web.test.yaml"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def keeper(runtime: Path) -> int | None:
    """The process that listens there."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(runtime / "flumeng" / "java.socket"))
        except OSError:
            return None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", credentials)[0])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_end(*processes: int) -> None:
    wait_for(lambda: not any(map(is_alive, processes)), f"one of the processes {processes} goes on")


def test_next_command_has_the_same_result_in_the_same_jvm(folder: Path, runtime: Path) -> None:
    expected = run(folder, None)
    assert expected[0] == 1
    assert "2 cases, 1 failed" in expected[1]
    assert expected == run(folder, runtime)
    first = keeper(runtime)
    assert first is not None
    java = children(first)
    assert len(java) == 1
    assert stat.S_IMODE((runtime / "flumeng").stat().st_mode) == 0o700
    assert stat.S_IMODE((runtime / "flumeng" / "java.socket").stat().st_mode) & 0o077 == 0
    time.sleep(spark_keeper.ANSWER_SECONDS)  # until the keeper is done with our questions
    assert expected == run(folder, runtime)
    assert (first, java) == (keeper(runtime), children(first))
    # Of another environment Spark's Python workers would know nothing.
    assert expected == run(folder, runtime, SOME_VARIABLE="other")
    wait_for_end(first, *java)
    other = keeper(runtime)
    assert other not in (None, first)
    assert other is not None
    java = children(other)
    os.kill(other, signal.SIGKILL)
    wait_for_end(other, *java)


def test_users_function_is_imported_again_by_each_command(folder: Path, runtime: Path) -> None:
    """Spark's Python workers serve one command after the other, and have imported its modules."""
    step = '  - python: {function: "marks:mark", adds: "mark BIGINT"}\n'
    (folder / "web.yaml").write_text(FLOW.replace("  - sql", f"{step}  - sql"))
    (folder / "web.test.yaml").write_text(
        CASES.replace("n: 1", "mark: 1").replace("n: 2", "mark: 2")
    )
    said = []
    for number in (1, 2):
        (folder / "marks.py").write_text(
            "import pyarrow as pa\n"
            "def mark(events: pa.RecordBatch) -> pa.RecordBatch:\n"
            f"    return events.append_column('mark', pa.array([{number}] * events.num_rows))\n"
        )
        said.append(run(folder, runtime, PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1"))
    assert "wrong: failed" in said[0][1]
    assert "right: failed" in said[1][1]


def test_unused_keeper_of_java_ends_and_leaves_nothing(runtime: Path) -> None:
    directory = runtime / "flumeng"
    directory.mkdir(mode=0o700)
    command = [*PYTHON, "flumeng.agent.dryrun.spark_keeper", str(directory), "setting", "0.1"]
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
    assert [path.name for path in directory.iterdir()] == ["java.lock"]
