"""Flows that read a site only in a window are no fault outside of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.queries import lag, overview
from flumeng.control.queries.lag import FlowLag
from flumeng.control.queries.overview import FlowRow
from tests.testkit.cluster import new_cluster
from tests.testkit.store import FakeStore

BERLIN = "22:00-06:00 Europe/Berlin"
EVENING = datetime(2026, 12, 7, 20, tzinfo=UTC).timestamp()
NIGHT = EVENING + 3600


def cluster(of_flow: str, of_site: str) -> FakeStore:
    store = new_cluster()
    operator = Operator(store, "a", "", 0.0)
    name_cluster(operator, "nyc")
    add_site(operator, "fra", ["g:1"], "", at=of_site)
    at = f", at: '{of_flow}'" if of_flow else ""
    apply_flow(
        operator, f"flow: copy\nsources: [{{flow: {{site: fra, name: web{at}}}}}]\nsinks: [noop]\n"
    )
    return store


def row(store: FakeStore, now: float) -> FlowRow:
    (found,) = overview.flows(store, now=now)
    return found


@pytest.mark.parametrize(("of_flow", "of_site"), [(BERLIN, ""), ("", BERLIN)])
def test_flow_waits_outside_the_window_of_its_own_or_of_its_site(
    of_flow: str, of_site: str
) -> None:
    store = cluster(of_flow, of_site)
    assert row(store, EVENING).waits == (f"it reads site fra at {BERLIN}: again from Mon 22:00 on")
    assert row(store, NIGHT).waits == ""
    assert overview.flows(store)[0].waits == "", "nobody asks for a time"


def test_both_windows_have_to_be_open() -> None:
    store = cluster("00:00-12:00 UTC", BERLIN)
    assert "at 00:00-12:00 UTC" in row(store, NIGHT).waits
    assert row(store, NIGHT + 4 * 3600).waits == ""


def test_flow_without_a_window_never_waits() -> None:
    assert row(cluster("", ""), EVENING).waits == ""


def test_flow_that_waits_is_not_late() -> None:
    late = FlowLag(1000, 0, 90_000.0, "growing", moved=False)
    store = cluster(BERLIN, "")
    assert list(lag.causes(row(store, EVENING), late)) == []
    assert len(list(lag.causes(row(store, NIGHT), late))) == 1
