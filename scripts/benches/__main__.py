"""``python -m benches NAME [--json]``: run one measurement and print what it found.

What its ``run`` takes are options: ``--events 1000000``.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import logging
import os
import platform
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

NAMES = (
    "ingest",
    "e2e",
    "planner",
    "master",
    "acks",
    "failover",
    "filters",
    "sessions",
    "journal",
    "kafka",
    "latency",
    "breadth",
    "console",
    "handover",
    "hosts",
    "parse",
    "push",
    "relay",
    "queue",
    "replication",
    "rest",
    "scaling",
    "secure",
    "seen",
    "sinks",
    "spark",
    "takeover",
    "try",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure one thing.")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given, rest = parser.parse_known_args()
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    run = importlib.import_module(f"benches.{given.name}").run
    options = argparse.ArgumentParser(prog=f"scripts/bench {given.name}", description=run.__doc__)
    for name, option in inspect.signature(run).parameters.items():
        options.add_argument(
            f"--{name.replace('_', '-')}", type=type(option.default), default=option.default
        )
    found: dict[str, object] = run(**vars(options.parse_args(rest)))
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
