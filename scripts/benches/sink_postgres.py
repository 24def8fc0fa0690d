"""Rows into PostgreSQL beside psql's ``\\copy``: the same rows, the same server, equal tables.

A real collector empties a journal into a table, exactly once. The rows of that table are then
written to a text file, and ``psql`` copies the file into an empty table like the first. Both are
done twice, in turns, and the better run counts: both wait for the same disk.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from benches import collecting
from tests.testkit.servers.postgres import RealPostgres, find

TURNS = 2
SECRET = "FLUMENG_SECRET_DATABASE"


def measure(events: int) -> dict[str, float]:
    """``postgres_ratio``: events a second of the sink over rows a second of ``psql``."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        collecting.fill(place / "journals" / "0", events)
        server = RealPostgres()
        os.environ[SECRET] = server.password
        server.start()
        try:
            turns = [_turn(server, place, turn, events) for turn in range(TURNS)]
        finally:
            server.close()
            del os.environ[SECRET]
    sink, copy = (max(rates) for rates in zip(*turns, strict=True))
    return {
        "postgres_ratio": round(sink / copy, 2),
        "postgres_events_per_second": round(sink),
        "postgres_copy_rows_per_second": round(copy),
    }


def _turn(server: RealPostgres, place: Path, turn: int, events: int) -> tuple[float, float]:
    """Events a second of the sink, rows a second of ``psql``."""
    table = f"sink{turn}"
    found = collecting.measure(place, table, "exactly-once", _sink(server, table), events)
    rows = server.run(f"SELECT count(DISTINCT seq) FROM {table}")
    assert rows == [(events,)], f"{rows} of {events} events in the table"
    file = place / "rows.txt"
    _psql(server, f"\\copy {table} to '{file}'")
    server.run(f"CREATE TABLE copy (LIKE {table})", f"DROP TABLE {table}", "CHECKPOINT")
    began = time.perf_counter()
    _psql(server, f"\\copy copy from '{file}'")
    seconds = time.perf_counter() - began
    assert server.run("SELECT count(*) FROM copy") == [(events,)]
    server.run("DROP TABLE copy", "CHECKPOINT")
    return found["rate"], events / seconds


def _sink(server: RealPostgres, table: str) -> str:
    return (
        f'sql: {{url: "{server.url}", table: {table}, username: {server.username}, '
        'password: "${secret:database}", sslmode: disable, create: true}'
    )


def _psql(server: RealPostgres, command: str) -> None:
    subprocess.run(
        [
            find() / "psql",
            *("--host", server.host, "--port", str(server.port), "--username", server.username),
            *("--dbname", server.database, "--no-psqlrc", "--command", command),
        ],
        env=os.environ | {"PGPASSWORD": server.password},
        stdout=subprocess.DEVNULL,
        check=True,
    )
