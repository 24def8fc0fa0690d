"""How fast `flumeng flow try` is: syslog lines from a file and from a pipe through ``parse`` and
``where``, against the same filters alone in the same run.

The filters alone run in this process, over events in memory, in one thread. The command is a
process of its own that reads, cuts, filters and prints, to nowhere, in three threads. Rounds of
all alternate, and the best of each counts, since other work on the machine only makes one slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from flumeng.agent.dryrun.filter_tree import FilterTree
from flumeng.agent.dryrun.reading import lines
from flumeng.agent.dryrun.received_lines import ReceivedLines
from flumeng.config import check_flow

LENGTH = 200
FLOW = """\
flow: tried
sources: [syslog: {listen: "127.0.0.1:0"}]
filters:
  - parse: {format: syslog}
  - where: "severity <= 4"
sinks: [noop]
"""
RECEIVED = 1_795_435_200_000_000
RECEIVED_TEXT = "2026-11-23T12:00:00Z"


def run(events: int = 1_000_000, rounds: int = 5) -> dict[str, object]:
    """Seconds of each; ``try_ratio`` is the command's time to that of its filters alone."""
    with tempfile.TemporaryDirectory() as scratch:
        flow, full, empty = (Path(scratch) / name for name in ("flow.yaml", "lines", "nothing"))
        flow.write_text(FLOW)
        empty.touch()
        with full.open("w") as file:
            file.writelines(map(_line, range(events)))
        batches = _received(full)
        measured: dict[str, Callable[[], None]] = {
            "filters": lambda: _filter(batches),
            "start": lambda: _try(flow, empty),
            "try": lambda: _try(flow, full),
            "try_json": lambda: _try(flow, full, "--json"),
            "try_pipe": lambda: _try_piped(flow, full),
        }
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in measured}
        for _ in range(rounds):
            for name, act in measured.items():
                rows[name].append(_measured(act))
    found: dict[str, object] = {"lines": events, "bytes_a_line": LENGTH}
    for unit, column in (("seconds", 0), ("cpu_seconds", 1)):
        best = {name: min(row[column] for row in of) for name, of in rows.items()}
        found |= {f"{name}_{unit}": round(taken, 2) for name, taken in best.items()}
        kind = unit.removesuffix("seconds")
        for name in ("try", "try_json", "try_pipe"):
            found[f"{name}_{kind}ratio"] = round(best[name] / best["filters"], 2)
            running = best[name] - best["start"]
            found[f"{name}_{kind}ratio_without_start"] = round(running / best["filters"], 2)
    return found


def _measured(act: Callable[[], None]) -> tuple[float, float]:
    """Seconds of a clock, and of all processors together."""
    begun, used = time.monotonic(), _cpu_seconds()
    act()
    return time.monotonic() - begun, _cpu_seconds() - used


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _line(number: int) -> str:
    """Severities 0 to 7 in turn: five of eight are kept."""
    head = f"<{number % 192}>1 2026-11-23T10:{number % 60:02}:15.003Z web{number % 50} nginx - - - "
    return head.ljust(LENGTH, "x") + "\n"


def _received(path: Path) -> list[list[pa.RecordBatch]]:
    received = ReceivedLines(check_flow(FLOW), ts=RECEIVED)
    return [received.events(piece) for piece in lines([path], received.max_line_bytes)]


def _filter(batches: list[list[pa.RecordBatch]]) -> None:
    tree = FilterTree(check_flow(FLOW).stages, _no_spark, batches[0][0].schema)
    for piece in batches:
        list(tree.run(piece))


def _no_spark() -> pa.Schema:
    raise AssertionError("these filters need no Spark")


def _command(flow: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "cli.main", "flow", "try", str(flow), *words]


def _try(flow: Path, path: Path, *words: str) -> None:
    given = _command(flow, str(path), "--ts", RECEIVED_TEXT, *words)
    subprocess.run(
        given, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=_TOP
    )


def _try_piped(flow: Path, path: Path) -> None:
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as cat:
        given = _command(flow, "--ts", RECEIVED_TEXT)
        subprocess.run(
            given,
            check=True,
            stdin=cat.stdout,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=_TOP,
        )


_TOP = Path(__file__).parents[2]
