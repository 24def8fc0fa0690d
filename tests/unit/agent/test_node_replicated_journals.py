"""Replicas of others' journals that a node removes, and those that it keeps.

Protects that the absence of a record removes a replica only where it was seen in the same tree
before: an older export that is imported may lack journals whose events no other node has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from flumeng.agent.node.data_directory import REPLICAS, DataDirectory, KnownNames
from flumeng.agent.node.journal_registry import JournalRegistry
from flumeng.agent.node.machine import Machine
from flumeng.agent.node.registration import Identity, Registration
from flumeng.agent.node.replicated_journals import CurrentTexts, ReplicatedJournals
from flumeng.control.zookeeper import ANY
from tests.testkit.cluster import add_journal, new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths

J = "web.n2.0.00000000"


@dataclass
class Workers:
    """The machine's messages about them."""

    replicas: dict[str, str]
    journals: dict[str, Any] = field(default_factory=dict)
    proposals: dict[str, Any] = field(default_factory=dict)


class Site:
    """The node n1, with the first ``generation`` of a tree."""

    def __init__(self, path: Path, store: FakeStore) -> None:
        self.home, self.store = DataDirectory(path), store
        self.workers = Workers({J: "n1/x"})
        self.generation = self.seen = 1
        self.now, self.step_seconds = 0.0, 60.0  # all is due
        self.again()

    def again(self) -> None:
        """A new process on the same directory."""
        znodes = Registration(self.store, Identity("n1", "u", (), "", {}), self.home)
        self.registry = JournalRegistry(znodes.znodes, "n1", self._clock)
        self.replicated = ReplicatedJournals(
            self.home,
            cast("Machine", self.workers),
            self.registry,
            CurrentTexts(self.store, znodes.trusts),
            me="n1",
            remember=self._remember,
            is_same_tree=lambda: self.seen == self.generation,
            clock=lambda: 0.0,
        )

    def _clock(self) -> float:
        self.now += self.step_seconds
        return self.now

    def _remember(self, present: Collection[str], local: Collection[str]) -> KnownNames:
        known = self.home.known_names(REPLICAS).after(self.generation, present, local)
        self.home.keep_known(REPLICAS, known)
        return known

    def unwanted(self, assigned: Mapping[str, int] | None = None) -> list[str]:
        told: list[Any] = []
        self.replicated.scan(assigned or {}, told.append)
        return list(told[-1]["unwanted"]) if told else []


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    put(store)
    return store


@pytest.fixture
def site(tmp_path: Path, store: FakeStore) -> Site:
    return Site(tmp_path, store)


def put(store: FakeStore) -> None:
    in_sync, replicas = ("n2/b", "n1/x"), ("n2", "n1")
    add_journal(store, J, in_sync=in_sync, replicas=replicas, lineage="l")


def lose(store: FakeStore) -> None:
    store.remove(paths.journal(J), ANY)


def test_replica_is_removed_when_its_record_was_seen_and_is_gone(
    site: Site, store: FakeStore
) -> None:
    assert site.unwanted() == []
    site.again()
    lose(store)
    assert site.unwanted() == [J]
    assert site.replicated.problems == {}


def test_replica_without_a_record_in_an_import_stays(site: Site, store: FakeStore) -> None:
    assert site.unwanted() == []
    lose(store)
    site.generation = site.seen = 2
    assert site.unwanted() == []
    site.again()
    assert site.unwanted() == []
    (problem,) = site.replicated.problems.values()
    assert f"({J})" in problem
    assert "`flumeng journal promote JOURNAL --to n1 --unclean`" in problem
    put(store)
    assert (site.unwanted(), site.replicated.problems) == ([], {})
    lose(store)
    assert site.unwanted() == [J]


def test_record_read_before_an_import_does_not_count_as_seen_in_it(
    site: Site, store: FakeStore
) -> None:
    """The node has read it a moment ago, and does not read it again at once."""
    site.step_seconds = 0.0
    assert site.unwanted() == []
    lose(store)
    site.generation = site.seen = 2
    site.registry.forget_names()
    assert site.unwanted() == []
    site.step_seconds = 60.0
    assert site.unwanted() == []


def test_no_replica_is_removed_during_an_import(site: Site, store: FakeStore) -> None:
    assert site.unwanted() == []
    lose(store)
    site.seen = 2
    assert site.unwanted() == []


def test_replica_made_while_the_node_was_paused_is_removed_too(
    site: Site, store: FakeStore
) -> None:
    """Its record was seen before it was there, and not since."""
    site.workers.replicas.clear()
    assert site.unwanted({J: 0}) == []
    site.workers.replicas[J] = "n1/x"
    lose(store)
    assert site.unwanted({J: 0}) == [J]
