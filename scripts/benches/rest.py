"""Costs of a cluster at rest and at size: idle masters and nodes, members, large deletes."""

from __future__ import annotations

import importlib

PARTS = ("rest_idle", "rest_delete", "rest_members", "rest_iceberg")


def run() -> dict[str, float]:
    """One figure each: see docs/development/benchmarks.md."""
    found: dict[str, float] = {}
    for part in PARTS:
        found |= importlib.import_module(f"benches.{part}").measure()
    return found
