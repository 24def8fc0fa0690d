"""``python -m benches NAME [--json]``: run one measurement and print what it found."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

NAMES = ("ingest", "e2e", "planner", "acks", "failover", "sessions")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure one thing.")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    found: dict[str, object] = importlib.import_module(f"benches.{given.name}").run()
    found["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"
    found["date"] = datetime.now(UTC).strftime("%Y-%m-%d")
    if given.json:
        print(json.dumps(found))
        return
    table = Table("figure", "value", title=f"bench {given.name}")
    for key, value in found.items():
        table.add_row(key, json.dumps(value))
    Console().print(table)


if __name__ == "__main__":
    main()
