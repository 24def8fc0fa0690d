"""A made-up next version of the schema: from it on, decided batches have a place."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from zkschema import migrations, table
from zkschema.migrations import Change, Migration, Set, Tree

BEFORE = table.VERSION
NEXT = table.VERSION + 1


def add_intents(tree: Tree) -> list[Change]:
    flows = [path.split("/")[2] for path in tree if re.fullmatch("/flows/[^/]+", path)]
    folders = ["/intents", *(f"/intents/{flow}" for flow in sorted(flows))]
    return [Set(path, None) for path in folders if path not in tree]


TO_NEXT = Migration(BEFORE, "decided batches get a place", add_intents)


def make_up_next_version(patch: pytest.MonkeyPatch) -> None:
    """Make this flumeng one of the next version."""
    rows = {
        name: replace(getattr(table, name), since=NEXT)
        for name in ("all_intents", "intents", "intent")
    }
    since = {row.pattern: row for row in rows.values()}
    for name, row in rows.items():
        patch.setattr(table, name, row)
    patch.setattr(table, "ROWS", [since.get(row.pattern, row) for row in table.ROWS])
    patch.setattr(table, "VERSION", NEXT)
    patch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, TO_NEXT))
