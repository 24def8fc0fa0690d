"""A journal's id names its flow, its node, and the worker that made it."""

from __future__ import annotations

import pytest

from flumeng.events.journal_names import flow_of, is_journal, maker_of, new_id, worker_of


def test_journal_id_names_flow_and_worker_also_where_the_node_has_dots() -> None:
    name = new_id("web", "n1.example.org", 3)
    assert (flow_of(name), maker_of(name)) == ("web", 3)
    assert name.startswith("web.n1.example.org.3.")
    assert new_id("web", "n1.example.org", 3) != name


def test_journal_belongs_to_its_worker_or_to_the_first_when_that_is_gone() -> None:
    made = [new_id("web", "n1", number) for number in range(4)]
    assert [worker_of(name, 4) for name in made] == [0, 1, 2, 3]
    assert [worker_of(name, 2) for name in made] == [0, 1, 0, 0]
    assert [worker_of(name, 1) for name in made] == [0, 0, 0, 0]


@pytest.mark.parametrize("name", ["lost+found", "backup", "web.old", "web.n1.x.0a", "web.n1.-1.0a"])
def test_foreign_name_is_no_journal(name: str) -> None:
    assert is_journal(new_id("web", "n1.example.org", 3))
    assert not is_journal(name)
    assert not is_journal(f"web.n1.0.{'x' * 300}")
