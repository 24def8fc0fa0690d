"""The audit keeps the entries that were created last, for any times that their writers claim."""

from __future__ import annotations

import pytest

from flumeng.control.commands.operator import KEEP_AUDIT, MOST_LOOKS, trim_audit
from flumeng.control.zookeeper import ABSENT
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore
from zkschema import paths, records


def add(store: FakeStore, count: int, time: float, who: str) -> None:
    """Add entries with ``time`` by their writer's clock."""
    for number in range(count):
        entry = records.Audit(who=who, command="c", reason="", time=time)
        store.write(paths.audit(entry.name(f"{who}{number:05d}")), entry, ABSENT)


def authors(store: FakeStore) -> list[str]:
    found = store.read_each([paths.audit(name) for name in store.children(paths.audits())])
    return [one.value.who for one in found if one is not None and hasattr(one, "value")]


@pytest.mark.parametrize("off", [-1e9, 1e9])
def test_wrong_clock_of_a_writer_does_not_decide_which_entries_go(
    store: FakeStore, off: float
) -> None:
    add(store, KEEP_AUDIT - 100, 2e9, "early")
    add(store, 200, 2e9 + off, "late")
    trim_audit(store)
    kept = authors(store)
    assert kept.count("late") == 200
    assert kept.count("early") == KEEP_AUDIT - 1 - 200


@pytest.mark.slow
def test_flood_of_entries_is_trimmed_in_bounded_portions(store: FakeStore) -> None:
    add(store, MOST_LOOKS + KEEP_AUDIT, 2e9, "a")

    counting = ScriptedStore(store.tree)
    for _ in range(3):
        trim_audit(counting)
    assert len(authors(store)) == KEEP_AUDIT - 1
    assert max(map(len, counting.reads)) <= MOST_LOOKS
