"""How fast events reach each kind of target, beside a plain client of it in the same run."""

from __future__ import annotations

import importlib

TARGETS = ("elasticsearch", "lakes", "postgres", "s3", "kafka")


def run(events: int = 4_000_000, only: str = ",".join(TARGETS)) -> dict[str, object]:
    """Each module ``benches.sink_NAME`` says what it compares; ``only`` names some of them."""
    found: dict[str, object] = {"events": events}
    for name in only.split(","):
        found |= importlib.import_module(f"benches.sink_{name}").measure(events)
    return found
