"""The contract of flumeng for each component of this plug-in."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from flumeng_testkit import FilterContract, RangedInputContract, SinkContract, SourceContract


class TestDiskUsage(SourceContract):
    name = "disk_usage"

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"paths": [str(folder)], "every_seconds": 0.05}


class TestSqliteRows(RangedInputContract):
    name = "sqlite_rows"

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "app.db"), "table": "log", "column": "message"}

    def fill(self, folder: Path, events: int) -> None:
        with closing(sqlite3.connect(folder / "app.db")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS log (message TEXT)")
            rows = ((f"message {number}",) for number in range(events))
            database.executemany("INSERT INTO log VALUES (?)", rows)


class TestPattern(FilterContract):
    name = "pattern"

    def options(self, folder: Path) -> Mapping[str, Any]:
        del folder
        return {"column": "pattern"}


class TestSqlite(SinkContract):
    name = "sqlite"

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"path": str(folder / "events.db")}

    def written(self, options: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
        with closing(sqlite3.connect(options["path"])) as database:
            return database.execute("SELECT journal, seq FROM events").fetchall()
