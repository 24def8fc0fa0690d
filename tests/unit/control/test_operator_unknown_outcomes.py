"""A command whose transaction got no answer: its audit entry shows whether it was done."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Path, Store, Version, Write
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths

FLOW = "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}"


class Silent(FakeStore):
    """Carries transactions out or not, and answers none; it stays away for two more looks."""

    def __init__(self, *, does: bool) -> None:
        super().__init__()
        self._does = does
        self._away = 2

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        if self._does:
            super().commit(writes)
        raise UnavailableError("ConnectionLoss")

    def exists(self, path: object) -> bool:
        if str(path).startswith("/audit/") and self._away:
            self._away -= 1
            raise UnavailableError("not yet")
        return super().exists(path)  # type: ignore[arg-type]


def silent(*, does: bool) -> Silent:
    store = Silent(does=does)
    new_cluster(store.tree)
    return store


def apply(store: Store) -> None:
    apply_flow(Operator(store, "a", "", 0.0, settle_seconds=0.5), FLOW)


def test_command_without_an_answer_is_recognised_as_done() -> None:
    store = silent(does=True)
    apply(store)
    assert store.read(paths.flow("web")) is not None


@pytest.mark.slow
def test_command_without_an_answer_or_entry_is_reported_as_unknown() -> None:
    with pytest.raises(UnavailableError, match="the outcome is unknown"):
        apply(silent(does=False))


class Departing(FakeStore):
    """Loses its connection when a command is about to write."""

    def children(self, path: Path) -> list[str]:
        names = super().children(path)
        if path == paths.audits():
            self.cut()
        return names


def test_command_that_lost_the_connection_before_its_change_says_that_it_was_not_sent() -> None:
    store = Departing()
    new_cluster(store.tree)
    with pytest.raises(UnavailableError, match="the change was not sent"):
        apply(store)
