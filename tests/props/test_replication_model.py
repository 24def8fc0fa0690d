"""All that may happen to three replicas of a journal and a few events, in every order.

``FLUMENG_REPLICATION_MODEL=3`` searches with up to three events: that takes minutes, and 800 MB.
"""

from __future__ import annotations

import os

import pytest

from tests.props.replication_mutants import FAULTS
from tests.testkit.simulation.replicas.model.search import Left, Search

LONG = os.environ.get("FLUMENG_REPLICATION_MODEL") == "3"
STATES = {
    Left(events=1, crashes=1, promotions=0, late=1): 10_810,
    Left(events=1, crashes=0, promotions=1, late=1): 12_961,
}
"""The number of states: another number means that the protocol or the model has changed."""
LONG_STATES = {
    Left(events=2, crashes=1, promotions=1, late=0): 194_295,
    Left(events=1, crashes=1, promotions=1, late=1): 242_128,
    Left(events=2, crashes=1, promotions=0, late=1): 269_350,
    Left(events=2, crashes=0, promotions=1, late=1): 217_200,
    Left(events=3, crashes=1, promotions=1, late=0): 2_233_572,
}


@pytest.mark.slow
@pytest.mark.parametrize("left", [*STATES, *(LONG_STATES if LONG else ())], ids=str)
def test_no_order_of_events_breaks_the_protocol(left: Left) -> None:
    """The checks are in ``tests.testkit.simulation.replicas.model.search``, at its end and in
    ``Search._check``; where nothing more can happen all replicas must be in sync and the same."""
    search = Search(left)
    states = search.run()
    print(f"{left}: {states} states, {search.rests} at rest")
    assert search.rests
    assert states == (STATES | LONG_STATES)[left]


NOT_THERE = {
    "a replica that is not in sync is promoted",  # the master's part
    "a primary that is started again keeps its term",  # its process's part
    "a new disk passes for the one that was lost",  # no disk is lost
    "a replica keeps what lies below its primary's floor, whatever that was",  # nothing is trimmed
    "a replica lets go what its own checkpoint does not cover",  # the same
    "a primary takes what ZooKeeper had before",  # each reader reads the latest version
    "a primary answers with too few in sync",  # one is enough
    "a primary hears what was said in other terms",  # such letters are forgotten
    "a replica takes events before it has heard what its primary has",  # no disk is lost
    "a promotion begins no term",  # every replica has the term, and so begins one more
    "a primary that knows that it is over goes on",  # its answers are correct all the same
}
SMALL = [
    Left(events=1, crashes=1, promotions=0, late=1),
    Left(events=1, crashes=0, promotions=1, late=1),
]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in NOT_THERE])
def test_a_fault_of_the_protocol_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in FAULTS[name]:
        fault.put_in(monkeypatch)
    for left in SMALL:
        try:
            Search(left).run()
        except Exception:
            return
    pytest.fail("no order of events shows the fault")
