"""A command whose transaction nobody answered: its audit entry tells whether it was done."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flumeng.control.commands import operator
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Store, Version, Write, tree
from flumeng.platform.errors import UnavailableError
from tests.testkit.store import FakeStore
from zkschema import paths

FLOW = "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}"


class Silent(FakeStore):
    """Carries transactions out, or does not, and answers none; it is away for two looks more."""

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
    other = FakeStore(store.tree)
    tree.init(other)
    return store


def apply(store: Store) -> None:
    apply_flow(Operator(store, "a", "", 0.0), FLOW)


def test_what_was_done_is_known_to_be_done() -> None:
    store = silent(does=True)
    apply(store)
    assert store.read(paths.flow("web")) is not None


def test_what_is_not_seen_is_not_called_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "SETTLE_SECONDS", 0.5)
    with pytest.raises(UnavailableError, match="not known whether it was done"):
        apply(silent(does=False))
