"""A node's name belongs to one host: a host that has lost it writes nothing any more, and stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.agent.node.claim import SupplantedError
from flumeng.agent.node.events import Reported
from flumeng.control.commands.nodes import discard_node
from flumeng.control.commands.operator import Operator
from tests.testkit.store import FakeStore
from tests.unit.agent.node_bench import Bench, task
from zkschema import paths

STATUS = Reported("ingest.0", {"type": "status", "answers": 0, "tasks": {}, "journals": {}})


@pytest.fixture
def given_away(tmp_path: Path) -> tuple[Bench, Bench]:
    """A node that was cut off, and a new host that got its name meanwhile."""
    old = Bench(tmp_path / "old")
    old.apply("web")
    old.assign(task("web"))
    old.turns()
    old.store.cut()
    old.store.expire()
    discard_node(Operator(FakeStore(old.store.tree), "o", "", 0.0), "n1")
    new = Bench(tmp_path / "new", old.store.tree)
    new.turns()
    assert new.live_uuid == new.home.identity()
    return old, new


def test_host_whose_name_was_taken_over_stops(given_away: tuple[Bench, Bench]) -> None:
    old, new = given_away
    before = new.znodes
    old.store.heal()
    with pytest.raises(SupplantedError, match="with another --name"):
        old.turns()
    assert new.znodes == before


def test_host_writes_nothing_before_it_has_read_the_owner_of_its_name(
    given_away: tuple[Bench, Bench],
) -> None:
    """Both hosts have written their znode once: its version does not tell them apart."""
    old, new = given_away
    before = new.znodes
    old.store.connected = True  # the node does not know yet
    old.node.hear(STATUS)
    with pytest.raises(SupplantedError):
        old.node.turn()
    assert new.znodes == before


@pytest.mark.parametrize("data", [b"{", b'{"v": 99}'])
def test_node_that_cannot_read_the_owner_of_its_name_reports_nothing(
    given_away: tuple[Bench, Bench], data: bytes
) -> None:
    old, new = given_away
    new.store.tree.znodes["/nodes/n1"].data = data
    before = new.znodes
    old.store.heal()
    old.node.turn()
    old.node.hear(STATUS)
    old.turns()
    assert new.znodes == before


def test_node_discarded_while_it_was_away_registers_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.turns()
    bench.store.cut()
    bench.store.expire()
    bench.store.connected = True
    discard_node(Operator(bench.store, "o", "", 0.0), "n1")
    bench.store.heal()
    bench.turns()
    assert bench.live_uuid == bench.home.identity()
    assert bench.store.exists(paths.status("n1"))
