"""Fixtures of tests without I/O: a cluster in memory, a command line on it, and a clock."""

from __future__ import annotations

import pytest

from tests.testkit.clock import Clock
from tests.testkit.cluster import new_cluster
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> FakeStore:
    """A session with a cluster that was just initialised."""
    return new_cluster()


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    return Shell(store.tree)
