"""Failover from a site and back: what it shows, which flows change, and how it is interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flumeng.control.commands import site_failover
from flumeng.control.commands.flows import apply_flow, delete_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.site_failover import Plan, Unread, Verb
from flumeng.control.commands.sites import add_site, name_cluster, sites
from flumeng.control.queries import failovers, timestamps
from flumeng.control.queries.cursors import CursorRow
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import ANY, Version, Write
from flumeng.platform.errors import ConflictError, UserError
from tests.testkit.cluster import new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Ack, Contact

NOW = 1_000_000.0
J = "web.n1.0.0a1b2c3d"
PARTITION = f"fra:{J}@site"
COPY = "flow: {name}\nsources: [{{flow: {{site: fra, name: web}}}}]\nsinks: [noop]\n"
LOCAL = "flow: local\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\nsinks: [noop]\n"


@pytest.fixture
def nyc() -> FakeStore:
    """The site nyc: ``copy`` reads fra, ``resting`` is paused, ``local`` is stopped, a standby."""
    store = new_cluster()
    store.tree.clock = lambda: NOW
    operator = Operator(store, "ann", "", NOW)
    name_cluster(operator, "nyc")
    add_site(operator, "fra", ["g1:9003"], "")
    for name in ("copy", "resting"):
        apply_flow(operator, COPY.format(name=name))
    apply_flow(operator, LOCAL)
    set_flow_state(operator, "resting", "suspended")
    set_flow_state(operator, "local", "stopped")
    add_site(operator, "fra", ["g1:9003"], "", standby=["local"])
    answered(store, {J: (0, 1000)})
    store.write(paths.ack("copy", "main", PARTITION), Ack(epoch=1, offset=400), ANY)
    return store


def answered(store: FakeStore, unread: dict[str, tuple[int, int]]) -> None:
    store.write(paths.contact("copy"), Contact(unread=unread), ANY)


def run(store: FakeStore, verb: Verb, now: float = NOW) -> Plan:
    """Run the command. Before a failback the site answers again."""
    if verb == "failback":
        store.tree.clock = lambda: NOW + 1
        answered(store, {J: (0, 1000)})
    plan = site_failover.plan(store, "fra", verb, now)
    site_failover.carry_out(Operator(store, "ann", "", now), plan)
    return plan


def states(store: FakeStore) -> dict[str, str]:
    flows = store.children(paths.flows())
    records = store.read_many([paths.flow(flow) for flow in flows])
    return {flow: record.value.state for flow, record in zip(flows, records, strict=True) if record}


def test_plan_counts_what_is_at_the_other_site_alone(nyc: FakeStore) -> None:
    plan = site_failover.plan(nyc, "fra", "failover", NOW + 7)
    assert plan.unread == (Unread("copy", J, acked=400, floor=0, end=1000),)
    assert (plan.missing, plan.silent_seconds, plan.since) == (600, 7.0, None)
    assert {flow.flow: (flow.before, flow.after) for flow in plan.flows} == {
        "copy": ("running", "suspended"),
        "resting": ("suspended", "suspended"),
        "local": ("stopped", "running"),
    }
    assert states(nyc)["copy"] == "running", "a plan changes nothing"


def test_failover_and_failback_change_only_their_flows(nyc: FakeStore) -> None:
    before = states(nyc)
    run(nyc, "failover", NOW + 100)
    assert states(nyc) == {"copy": "suspended", "resting": "suspended", "local": "running"}
    assert sites(nyc)[1][0].failover == NOW + 100
    run(nyc, "failback")
    assert states(nyc) == before
    assert sites(nyc)[1][0].failover is None
    with pytest.raises(UserError, match="no failover from site fra"):
        run(nyc, "failback")


def test_second_failover_keeps_the_time_and_the_flows_of_the_first(nyc: FakeStore) -> None:
    run(nyc, "failover", NOW)
    again = run(nyc, "failover", NOW + 50)
    assert again.is_done
    assert sites(nyc)[1][0].failover == NOW
    run(nyc, "failback")
    assert states(nyc)["copy"] == "running"


def test_flow_that_an_operator_resumed_stays_as_it_is(nyc: FakeStore) -> None:
    run(nyc, "failover")
    set_flow_state(Operator(nyc, "ann", "", NOW), "copy", "stopped")
    run(nyc, "failback")
    assert states(nyc)["copy"] == "stopped"


def test_failback_waits_for_an_answer_since_the_failover(nyc: FakeStore) -> None:
    nyc.tree.clock = lambda: NOW + 1
    run(nyc, "failover")
    plan = site_failover.plan(nyc, "fra", "failback", NOW + 2)
    for decided in (plan, site_failover.plan(nyc, "fra", "failback", NOW + 70)):
        with pytest.raises(ConflictError, match="start its gateways first"):
            site_failover.carry_out(Operator(nyc, "ann", "", NOW), decided)
    with pytest.raises(ConflictError, match="start its gateways first"):
        run(nyc, "failback", NOW + 70)
    assert states(nyc)["local"] == "running"


def test_failback_waits_by_the_interval_of_the_flow_itself(nyc: FakeStore) -> None:
    """A flow that asks rarely hears of the site as rarely."""
    operator = Operator(nyc, "ann", "", NOW)
    slow = COPY.format(name="copy").replace("web}", "web, discovery_seconds: 600}")
    for name in ("copy", "resting"):
        apply_flow(operator, slow.replace("flow: copy", f"flow: {name}"))
    run(nyc, "failover")
    nyc.tree.clock = lambda: NOW + 1
    answered(nyc, {J: (0, 1000)})
    late = site_failover.plan(nyc, "fra", "failback", NOW + 662)
    with pytest.raises(ConflictError, match=r"or not for 660 s.*ask it every 600 s"):
        site_failover.carry_out(operator, late)
    in_time = site_failover.plan(nyc, "fra", "failback", NOW + 660)
    site_failover.carry_out(operator, in_time)
    assert states(nyc)["copy"] == "running"


def causes(store: FakeStore, now: float = NOW) -> list[tuple[str, str]]:
    return [(cause.what, cause.advice) for cause in failovers.causes(ReadCache.of(store), [], now)]


def test_status_names_a_failover_its_flows_and_what_to_do_next(nyc: FakeStore) -> None:
    assert causes(nyc) == []
    run(nyc, "failover", NOW + 100)
    ((what, advice),) = causes(nyc, NOW + 110)
    since = timestamps.utc(NOW + 100)
    assert what.startswith(f"failover from site fra since {since} UTC, by ann: paused copy and ")
    assert "started local; 600 events were not acked here at its last answer" in what
    assert advice == "start the gateways of fra, then `flumeng site failback fra`"
    assert failovers.paused(ReadCache.of(nyc)) == {"copy": "fra"}
    nyc.tree.clock = lambda: NOW + 120
    answered(nyc, {J: (0, 1000)})
    ((_, advice),) = causes(nyc, NOW + 121)
    assert advice.startswith("the site answers again: `flumeng site failback fra`")
    set_flow_state(Operator(nyc, "ann", "", NOW), "copy", "running")
    ((_, advice),) = causes(nyc, NOW + 121)
    assert "(copy is running): repeat `flumeng site failover fra` or" in advice
    run(nyc, "failback", NOW + 2)
    assert causes(nyc) == []


def test_status_at_the_site_itself_names_who_has_taken_over(nyc: FakeStore) -> None:
    del nyc
    row = CursorRow("web", "nyc:copy", "r", None, 1, 600, site="nyc", reads_as="copy", failover=NOW)
    other = replace(row, cursor="nyc:more", reads_as="more", lag=None)
    store = ReadCache.of(new_cluster())
    ((what, advice),) = [(c.what, c.advice) for c in failovers.causes(store, [row], NOW)]
    since = timestamps.utc(NOW)
    assert what.startswith(
        f"site nyc has taken over from here since {since} UTC: it has paused copy"
    )
    assert "600 unread events are kept" in what
    assert "`flumeng site failback` there has led back" in advice
    (cause,) = failovers.causes(store, [row, other], NOW)
    assert "paused copy, more, for which an unknown number of unread events" in cause.what


def test_flow_that_changes_meanwhile_is_a_conflict_and_changes_nothing(nyc: FakeStore) -> None:
    plan = site_failover.plan(nyc, "fra", "failover", NOW)
    set_flow_state(Operator(nyc, "bob", "", NOW), "copy", "stopped")
    with pytest.raises(ConflictError, match="flow copy was changed meanwhile"):
        site_failover.carry_out(Operator(nyc, "ann", "", NOW), plan)
    assert states(nyc)["local"] == "stopped"


def test_many_flows_change_in_bounded_transactions(
    nyc: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names all flows first, so a repeated command finishes an interrupted one."""
    monkeypatch.setattr(site_failover, "MOST_WRITES", 2)
    monkeypatch.setattr("flumeng.control.zookeeper.transaction.MOST_WRITES", 2)
    operator = Operator(nyc, "ann", "", NOW)
    for number in range(5):
        apply_flow(operator, COPY.format(name=f"more{number}"))
    plan = site_failover.plan(nyc, "fra", "failover", NOW)
    with pytest.raises(ConflictError):
        site_failover.carry_out(Operator(Interrupted(nyc.tree), "ann", "", NOW), plan)
    some = [flow for flow, state in states(nyc).items() if state == "suspended"]
    assert 1 < len(some) < 7
    run(nyc, "failover")
    assert {state for flow, state in states(nyc).items() if flow != "local"} == {"suspended"}
    run(nyc, "failback")
    assert {flow for flow, state in states(nyc).items() if state == "running"} == {
        "copy", *(f"more{number}" for number in range(5)),
    }  # fmt: skip


class Interrupted(FakeStore):
    """A session whose fourth transaction is refused."""

    transactions = 0

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self.transactions += 1
        if self.transactions > 3:
            raise ConflictError("another one was faster")
        return super().commit(writes)


def test_standby_flow_that_is_gone_is_shown(nyc: FakeStore) -> None:
    delete_flow(Operator(nyc, "ann", "", NOW), "local")
    plan = run(nyc, "failover")
    assert [flow.after for flow in plan.flows if flow.flow == "local"] == ["absent"]


def test_unknown_flow_cannot_stand_by(nyc: FakeStore) -> None:
    with pytest.raises(UserError, match="nothing"):
        add_site(Operator(nyc, "ann", "", NOW), "fra", ["g1:9003"], "", standby=["nothing"])
