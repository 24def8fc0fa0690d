"""SIGKILL of a collector between any two steps of a commit that several of its tasks share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from flumeng.connectors.api.sink import BatchId, TaskRevision
from flumeng.connectors.lakehouse.group_commit import GroupCommit
from flumeng.connectors.lakehouse.tables import TableSink
from tests.testkit.servers.tables import DeltaDirectory, IcebergDirectory, Lake, staged

TASKS = 4
LAKES: dict[str, Callable[[Path], Lake]] = {"delta": DeltaDirectory, "iceberg": IcebergDirectory}
STEPS = {"delta": 5, "iceberg": 7}
"""Crash points: before and after the look, the commit, the catalog's part of it, and the end."""


def collect(lake: Lake) -> None:
    """Each task commits its batch; all of them in one commit."""
    group = GroupCommit(gather_seconds=30.0)
    tasks = [TaskRevision("web", f"collect.{n}", 1) for n in range(TASKS)]
    sinks = [TableSink(lake.our_table(), group, task) for task in tasks]
    commits = []
    for number, sink in enumerate(sinks):
        written = sink.written(staged(sink, pa.table({"event": [f"{number}"]})))
        assert written.commit is not None
        identity = BatchId(f"web.collect.{number}", 1)
        commits.append(threading.Thread(target=written.commit, args=(identity,)))
    for thread in commits:
        thread.start()
    for thread in commits:
        thread.join()


def die_at(number: int, place: Path, kind: str) -> None:
    """A process that kills itself at that step, and exits normally when it has fewer steps."""
    steps: Iterator[int] = iter(range(1000))
    lake = LAKES[kind](place)
    table: Any = type(lake.our_table())

    def step() -> None:
        if next(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def stepping(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def stepped(*given: Any, **named: Any) -> Any:
            step()
            found = plain(*given, **named)
            step()
            return found

        setattr(owner, name, stepped)

    add = table.add

    def committed(self: Any, additions: Any) -> Any:
        """Commit; steps are counted from here on, when the table exists."""
        stepping(table, "_append")
        if kind == "iceberg":
            stepping(SqlCatalog, "commit_table")
        step()
        found = add(self, additions)
        step()
        return found

    table.add = committed
    collect(lake)


@pytest.mark.parametrize("kind", LAKES)
def test_collector_killed_at_any_step_of_a_shared_commit_commits_all_or_none(
    kind: str, tmp_path: Path
) -> None:
    """Afterwards either all of the group are there or none, and once all have repeated."""
    script = "import sys; from tests.live.test_lakes_groups import main; main(*sys.argv[1:])"
    command = [sys.executable, "-c", script, kind, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    codes = [int(line) for line in told.stdout.split()]
    assert codes == [-signal.SIGKILL] * (STEPS[kind] - 1) + [0], told.stderr
    seen = set()
    for number in range(STEPS[kind]):
        lake = LAKES[kind](tmp_path / str(number))
        before = sorted(lake.rows()["event"].to_pylist())
        seen.add(len(before))
        assert before in ([], ["0", "1", "2", "3"])
        collect(lake)
        assert sorted(lake.rows()["event"].to_pylist()) == ["0", "1", "2", "3"]
    assert seen == {0, TASKS}


def main(kind: str, folder: str) -> None:
    """Prints how each child has ended. They are forked: imports take longer than commits."""
    for number in range(STEPS[kind]):
        place = Path(folder, str(number))
        place.mkdir()
        child = os.fork()
        if child == 0:
            die_at(number, place, kind)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
