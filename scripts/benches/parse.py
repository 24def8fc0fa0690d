"""How many syslog lines a second of CPU time parses: both forms, and shapes that few senders write.

One process and one thread run what ``parse: {format: syslog}`` runs on events in memory, so nothing
is received, decoded or written. CPU time, not wall time, is what counts, and the best of several
rounds, since other work on the machine can only lower it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa

from flumeng.filters.formats.syslog import SyslogReader
from flumeng.filters.parse import ROWS_AT_A_TIME, ParseStage
from flumeng.filters.refused_times import Bounded

LINES = 131_072
ROUNDS = 5
LENGTH = 200
WITHIN_SECONDS = 7 * 86_400.0
RECEIVED = datetime(2026, 11, 9, 12, tzinfo=UTC)

Line = Callable[[int], str]

LINES_OF: dict[str, Line] = {
    "rfc5424": lambda n: f"<34>1 2026-11-09T10:{n % 60:02}:15.003Z web{n % 50} nginx {n} ID47 - ",
    "rfc5424_structured": lambda n: (
        f"<34>1 2026-11-09T10:{n % 60:02}:15.003Z web{n % 50} nginx {n} ID47 "
        f'[origin@32473 ip="192.0.2.{n % 250}" note="a \\"quoted\\" ] word"] '
    ),
    "rfc3164": lambda n: f"<34>Nov  9 10:{n % 60:02}:15 web{n % 50} nginx[{n}]: ",
    "cisco": lambda n: f"<189>{n}: *Nov  9 2026 10:{n % 60:02}:15.123: %SYS-5-CONFIG_I: ",
    "year_after_time": lambda n: f"<34>NOV 9 10:{n % 60:02}:15 2026 web{n % 50} nginx[{n}]: ",
    "iso_without_zone": lambda n: f"<34>2026-11-09 10:{n % 60:02}:15,123 web nginx[{n}]: ",
    "nearly_a_time": lambda n: f"<34>{n}: *Nov  9 2026 10:{n % 60:02}:15.1234567890x ",
    "no_time": lambda n: f"<34>nginx[{n}]: ",
    "quotes_and_backslashes": lambda n: f'<{n % 9}>1 - - - - - [a b="' + '\\"\\\\]' * 34,
    "spaces": lambda n: f"<{n % 9}>" + " " * (LENGTH - 4),
    "no_syslog": lambda n: f"{n} ",
}


def run(timezone: str = "") -> dict[str, object]:
    """Lines per CPU second of each shape; with a time zone for lines that name none."""
    found: dict[str, object] = {"lines": LINES, "bytes_a_line": LENGTH}
    for name, line in LINES_OF.items():
        found[f"{name}_lines_per_cpu_second"] = round(_measured(_events(line), timezone))
    return found


def _measured(events: pa.RecordBatch, timezone: str) -> float:
    stage = Bounded(ParseStage(SyslogReader(timezone or None)), WITHIN_SECONDS, ROWS_AT_A_TIME)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in stage(iter([events])):
            pass
        seconds.append(time.process_time() - begun)
    return LINES / min(seconds)


def _events(line: Line) -> pa.RecordBatch:
    bodies = [line(number).ljust(LENGTH, "x").encode() for number in range(LINES)]
    attrs = pa.array([[("source", "syslog")]], pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array(bodies, pa.binary()),
            "ts": pa.array([RECEIVED] * LINES, pa.timestamp("us", "UTC")),
            "host": pa.array(["192.0.2.1"] * LINES),
            "attrs": attrs.take(pa.array([0] * LINES)),
        }
    )
