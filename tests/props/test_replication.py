"""Hundreds of worlds whose replicas of a journal suffer all that is known, and faults that must be
noticed.

``FLUMENG_REPLICATION_SEED=n`` runs one of them again, ``FLUMENG_REPLICATION_SEEDS=n`` that many:
10000 is the long form.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise

import pytest

from flumeng.journal.replication import follower
from flumeng.journal.replication.messages import Begin, Reset
from tests.props.replication_mutants import FAULTS
from tests.testkit.simulation.replicas.world import World

ONE = os.environ.get("FLUMENG_REPLICATION_SEED")
SEEDS = int(os.environ.get("FLUMENG_REPLICATION_SEEDS", "500"))
PARTS = 4
STEPS = 800
NOTICED_WITHIN = 100
"""Maximum number of worlds until a fault must be noticed."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_illegal_happens_and_replicas_become_the_same(part: int) -> None:
    """``tests.testkit.simulation.replicas.checks`` lists the checks after every step."""
    seeds = [int(ONE)] if ONE else range(part, SEEDS, PARTS)
    for seed in seeds if part == 0 or not ONE else ():
        try:
            World(seed).run(STEPS)
        except Exception as error:
            error.add_note(f"FLUMENG_REPLICATION_SEED={seed} runs this world again")
            raise


@pytest.mark.slow
def test_worlds_are_not_idle() -> None:
    found: Counter[str] = Counter()
    for seed in range(200):
        found += happened(seed)
    few = {what: count for what, count in found.items() if count < 20}
    assert not few, f"happens hardly ever: {few} of {found}"
    assert len(found) == 10, f"never happens at all: {found}"


def happened(seed: int) -> Counter[str]:
    world = World(seed)
    world.run(STEPS)
    found: Counter[str] = Counter()
    for old, new in pairwise(world.past):
        found["promotions"] += new.primary != old.primary
        found["restarts in a new term"] += new.primary == old.primary and new.term > old.term
        found["joins"] += len(set(new.in_sync) - set(old.in_sync))
        found["removals"] += new.term == old.term and len(set(old.in_sync) - set(new.in_sync))
        found["moves"] += new.nodes != old.nodes
    for host in world.hosts.values():
        found["cuts"] += host.deeds[Begin, follower.Cut]
        found["resets"] += host.deeds[Reset, follower.Restart]
        found["lost disks"] += host.disks_lost
    found["answered"] += len(world.checks.answered)
    found["answered while not all are in sync"] += world.checks.answered_without_some
    return found


NOTICED_SOON_FROM = {
    "a replica keeps what lies below its primary's floor, whatever that was": 250,
    "a replica takes events before it has heard what its primary has": 100,
    "a primary hears what was said in other terms": 350,
}
NOTICED_BY_THE_MODEL = (
    "a replica joins that has caught up with what the primary knows to be everywhere"
)
"""One world of ten thousand notices it, and ``test_replication_model`` with one event."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if name != NOTICED_BY_THE_MODEL])
def test_fault_of_the_protocol_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in FAULTS[name]:
        fault.put_in(monkeypatch)
    first = NOTICED_SOON_FROM.get(name, 0)
    for seed in range(first, first + NOTICED_WITHIN):
        try:
            World(seed).run(STEPS)
        except Exception:
            return
    pytest.fail(f"{NOTICED_WITHIN} worlds did not notice the fault")
