"""Counts the rooms of the product, the lines in each, and which rooms import which.

``python scripts/structure.py [--check]``: a room is a folder of ``flumeng``, or ``cli`` or
``zkschema``; an arrow is a pair of rooms of which the first imports the second. Lines are those of
all Python files. ``--check`` prints nothing but what is wrong, and then exits with 1: more arrows
than ``ARROWS_AT_MOST``, more lines than ``LINES_AT_MOST``. import-linter, which has the floors in
``setup.cfg``, checks that no arrow points upwards and none is part of a circle.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import grimp

TOP = Path(__file__).parents[1]
ARROWS_AT_MOST = 65
LINES_AT_MOST = 131_000
"""A new capability may raise it by the lines that it is worth."""


def room(module: str) -> str:
    """Empty for the package ``flumeng`` itself."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "flumeng" else package


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    graph = grimp.build_graph("cli", "flumeng", "zkschema", cache_dir=None)
    found: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = room(module), room(imported)
            if all(pair) and pair[0] != pair[1]:
                found[pair[0]].add(pair[1])
    return found


def lines() -> Counter[str]:
    """Of each room, and of the package itself as ``flumeng``."""
    counted: Counter[str] = Counter()
    for top in ("cli", "flumeng", "zkschema"):
        for file in (TOP / top).rglob("*.py"):
            parts = file.relative_to(TOP).with_suffix("").parts
            name = room(".".join(parts)) if len(parts) > 2 or top != "flumeng" else ""
            counted[name or "flumeng"] += len(file.read_text().splitlines())
    return counted


def main() -> None:
    found, counted = arrows(), lines()
    total = sum(map(len, found.values()))
    if "--check" not in sys.argv[1:]:
        for name in sorted(counted, key=lambda name: -counted[name]):
            print(f"{name:12} {counted[name]:7,} lines, imports {' '.join(sorted(found[name]))}")
        print(f"{'together':12} {sum(counted.values()):7,} lines, {total} arrows")
    if total > ARROWS_AT_MOST:
        sys.exit(f"{total} arrows between rooms, of which {ARROWS_AT_MOST} are allowed")
    if sum(counted.values()) > LINES_AT_MOST:
        sys.exit(f"{sum(counted.values()):,} lines, of which {LINES_AT_MOST:,} are allowed")


if __name__ == "__main__":
    main()
