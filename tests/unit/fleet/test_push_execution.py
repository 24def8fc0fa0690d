"""Remains of a push that does not go as planned; sites are fake trees."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Literal

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.fleet import planning, writes
from flumeng.fleet.comparison import BEING_DELETED
from flumeng.fleet.execution import Manner
from flumeng.fleet.inventory import Inventory
from flumeng.fleet.plan import PushPlan
from flumeng.fleet.resources import Resources
from flumeng.fleet.site_copy import SiteCopy, copy_site
from flumeng.fleet.site_state import push_of, state_of
from flumeng.fleet.waves import Ending, Outcome, Wave
from flumeng.platform.options.windows import parse_window
from tests.testkit.sites import NOON, FakeSites, Fault
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Push, PushClaim

NOBODY = PushClaim(who="", push="", boot="", pid=0, since=0.0)
IN_TURN = (Wave("one", ("s0",)), Wave("two", ("s1",), settle_seconds=1))
NUMBERS = count(1)


def flow(name: str, variant: int = 0) -> Resources:
    return {
        f"flow/{name}": f"flow: {name}\nsources: [tail: {{paths: [/{variant}]}}]\nsinks: [noop]\n"
    }


def manner(
    plan: PushPlan,
    on_failure: Literal["stop", "rollback"] = "stop",
    *,
    wait_for_windows: bool = False,
) -> Manner:
    suffix = f"{next(NUMBERS):06d}"
    source = planning.source_of(plan, who="ann", reason="", now=NOON, suffix=suffix)
    back = replace(source, push=f"{source.push}-back")
    return Manner(
        "apply", source, back, NOBODY, on_failure=on_failure, wait_for_windows=wait_for_windows
    )


def pushed(
    sites: FakeSites,
    inventory: Inventory,
    wanted: Mapping[str, Resources],
    on_failure: Literal["stop", "rollback"] = "stop",
    *,
    fault: Fault | None = None,
    health: Callable[[SiteCopy], Mapping[str, str]] = lambda _copy: {},
) -> Outcome:
    plan = planning.plan_push(inventory, wanted, sites.connect(), only=list(wanted))
    inventory = replace(inventory, waves=planning.waves_of(inventory, wanted))
    return sites.push(plan, inventory, manner(plan, on_failure), fault=fault, health=health)


def known(sites: FakeSites, name: str) -> Push:
    return push_of(copy_site(sites.store(name)))


def rolled_back(meanwhile: Callable[[FakeSites], object]) -> tuple[FakeSites, Outcome]:
    """The second of two sites fails; the first is done and changes before the rollback."""
    sites = FakeSites(2)
    sites.broken["s1"] = {flow("a")["flow/a"]}
    pending = [meanwhile]

    def health(_copy: SiteCopy) -> Mapping[str, str]:
        if pending and sites.store("s1").read(paths.flow("a")):
            pending.pop()(sites)
        return {}

    wanted = {"s0": flow("a"), "s1": flow("a")}
    return sites, pushed(sites, sites.inventory(IN_TURN), wanted, "rollback", health=health)


def test_claim_of_a_site_that_cannot_be_reverted_is_released() -> None:
    text = flow("a", 9)["flow/a"]
    sites, outcome = rolled_back(
        lambda sites: apply_flow(Operator(sites.store("s0"), "hand", "", NOON), text)
    )
    said = "flow/a: it was changed by hand since the last push"
    assert (outcome.reverted, outcome.not_reverted) == (("s1",), {"s0": said})
    assert known(sites, "s0").claim is None


def test_site_with_a_later_push_of_another_person_is_not_reverted() -> None:
    other = {"s0": {**flow("a"), **flow("b")}}
    sites, outcome = rolled_back(lambda sites: pushed(sites, sites.inventory(IN_TURN), other))
    newest = known(sites, "s0").source
    assert newest is not None
    said = f"push {newest.push} of ann came after this one"
    assert (outcome.reverted, outcome.not_reverted) == (("s1",), {"s0": said})
    assert sites.store("s0").children(paths.flows()) == ["a", "b"]


class SlowSites(FakeSites):
    """Sites in which masters remove a deleted flow after so many looks."""

    def __init__(self, count: int, looks: int) -> None:
        super().__init__(count)
        self._looks = looks

    def _remove(self, store: FakeStore, flow: str) -> None:
        self._looks -= 1
        if self._looks < 0:
            super()._remove(store, flow)


@pytest.mark.parametrize(("looks", "is_reverted"), [(30, True), (10_000, False)])
def test_deleted_flow_is_recreated_once_it_is_gone(looks: int, is_reverted: bool) -> None:
    sites = SlowSites(1, looks)
    inventory = sites.inventory([Wave("all", ("s0",), settle_seconds=60)])
    before = {**flow("a"), **flow("b")}
    pushed(sites, inventory, {"s0": before})
    sites.broken["s0"] = set(flow("a", 1).values())
    plan = planning.plan_push(inventory, {"s0": flow("a", 1)}, sites.connect(), prune=True)
    outcome = sites.push(plan, inventory, manner(plan, "rollback"))
    if is_reverted:
        assert (outcome.reverted, outcome.not_reverted) == (("s0",), {})
        assert state_of(copy_site(sites.store("s0"))).resources == before
    else:
        assert outcome.not_reverted == {"s0": f"flow/b: {BEING_DELETED}"}


def test_a_site_whose_last_reply_is_lost_counts_as_touched() -> None:
    sites = FakeSites(1)
    lost = Fault(1, carried_out=True)
    outcome = pushed(sites, sites.inventory(), {"s0": flow("a")}, "rollback", fault=lost)
    assert outcome.ending is Ending.ROLLED_BACK
    assert outcome.not_reverted == {"s0": "s0 does not answer"}
    assert sites.store("s0").children(paths.flows()) == ["a"]


def test_trouble_from_before_a_push_does_not_fail_it_and_further_trouble_does() -> None:
    sites = FakeSites(1)
    inventory = sites.inventory([Wave("all", ("s0",), settle_seconds=1)])
    ill = {"node n9": "node n9 is down"}
    done = pushed(sites, inventory, {"s0": flow("a")}, health=lambda _copy: ill)
    assert done.ending == Ending.DONE

    def worse(copy: SiteCopy) -> Mapping[str, str]:
        there = "b" in copy.children(paths.flows())
        return {**ill, "sink": "a sink does not answer"} if there else ill

    failed = pushed(sites, inventory, {"s0": {**flow("a"), **flow("b")}}, health=worse).failed
    assert failed == {"s0": "the site was not well within 1 s: a sink does not answer"}


def test_trouble_during_the_soak_time_begins_it_again() -> None:
    sites = FakeSites(1)
    now = sites.time.clocks.monotonic
    inventory = sites.inventory([Wave("all", ("s0",), settle_seconds=60, soak_seconds=20)])
    done = pushed(
        sites,
        inventory,
        {"s0": flow("a")},
        health=lambda _copy: {"node n9": "node n9 is down"} if 5 < now() < 10 else {},
    )
    assert done.ending == Ending.DONE
    assert now() > 10 + 20


def test_push_killed_between_two_sites_is_continued_under_its_id() -> None:
    """The first site is done, and in the second there is only the claim of the push."""
    sites = FakeSites(2)
    wanted = dict.fromkeys(sites.trees, flow("a"))
    pushed(sites, sites.inventory(IN_TURN), wanted, fault=Fault(4, carried_out=False))
    assert known(sites, "s0").state == "applied"
    assert known(sites, "s1").source is None
    first = known(sites, "s0").source
    assert first is not None
    again = planning.plan_push(sites.inventory(IN_TURN), wanted, sites.connect())
    begun = planning.begun(again)
    assert begun is not None
    assert (begun.push, begun.sites) == (first.push, ("s0", "s1"))
    pushed(sites, sites.inventory(IN_TURN), wanted)
    over = planning.plan_push(sites.inventory(IN_TURN), wanted, sites.connect())
    assert planning.begun(over) is None


@pytest.mark.slow
def test_closed_window_is_checked_again_until_it_opens() -> None:
    sites = FakeSites(1)
    window = parse_window("daily 22:20-22:30")  # it begins at 22:13
    inventory = sites.inventory([Wave("one", ("s0",), windows=(window,))])
    plan = planning.plan_push(inventory, {"s0": flow("a")}, sites.connect())
    often = replace(manner(plan, wait_for_windows=True), window_seconds=0.2)
    outcomes: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: outcomes.append(sites.push(plan, inventory, often)), daemon=True
    )
    thread.start()
    thread.join(1.0)  # some looks at a window that is shut
    assert (outcomes, sites.store("s0").children(paths.flows())) == ([], [])
    sites.time.clocks.sleep(600)
    thread.join(30)
    assert [outcome.ending for outcome in outcomes] == [Ending.DONE]


@pytest.mark.slow
def test_number_of_kept_entries_is_bounded_and_the_oldest_go() -> None:
    sites = FakeSites(1)
    for number in range(writes.KEEP_ENTRIES + 4):
        pushed(sites, sites.inventory(), {"s0": flow("a", number)})
        kept = sites.store("s0").children(paths.push())
        oldest = max(0, number + 1 - writes.KEEP_ENTRIES)
        assert kept == [writes.entry_name(n) for n in range(oldest, number + 1)]


def test_isolated_parts_are_pushed_with_their_flow() -> None:
    sites = FakeSites(1)
    store = sites.store("s0")
    text = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks:\n  - noop\n"
    isolated = text + "  - {files: {path: /data}, isolated: true}\n"
    pushed(sites, sites.inventory(), {"s0": {"flow/web": isolated}})
    assert store.children(paths.flows()) == ["web", "web~files"]
    assert state_of(copy_site(store)).resources == {"flow/web": isolated}
    again = planning.plan_push(
        sites.inventory(), {"s0": {"flow/web": isolated}}, sites.connect(), prune=True
    )
    assert not again.sites["s0"].comparison.changes
    pushed(sites, sites.inventory(), {"s0": {"flow/web": text}})
    sites.obey_all()
    assert store.children(paths.flows()) == ["web"]
    pushed(sites, sites.inventory(), {"s0": {"flow/web": isolated}})
    over = planning.plan_push(sites.inventory(), {"s0": {}}, sites.connect(), prune=True)
    sites.push(over, sites.inventory(), manner(over))
    sites.obey_all()
    assert store.children(paths.flows()) == []


def test_push_deletes_no_flow_with_readers() -> None:
    sites = FakeSites(1)
    pushed(sites, sites.inventory(), {"s0": flow("a")})
    reader = "flow: copy\nsources: [flow: {name: a}]\nsinks: [noop]\n"
    apply_flow(Operator(sites.store("s0"), "hand", "", NOON), reader)
    plan = planning.plan_push(sites.inventory(), {"s0": {}}, sites.connect(), prune=True)
    said = "flow a is read by copy: delete those first, then flow a"
    assert plan.sites["s0"].comparison.conflicts == {"flow/a": said}
    assert not plan.sites["s0"].comparison.changes
    sites.push(plan, sites.inventory(), manner(plan))
    record = sites.store("s0").read(paths.flow("a"))
    assert record is not None
    assert record.value.state == "running"


def test_site_is_written_before_the_flows_that_read_it_and_removed_after_them() -> None:
    """When a push takes several transactions, each of them leaves a usable site."""
    sites = FakeSites(1)
    copy = "flow: copy\nsources: [flow: {site: fra, name: web}]\nsinks: [noop]\n"
    wanted = {"site/s0": "here", "site/fra": "g1:9003", "flow/copy": copy}

    def first(content: Resources, *, prune: bool) -> list[str]:
        plan = planning.plan_push(sites.inventory(), {"s0": content}, sites.connect(), prune=prune)
        changes = plan.sites["s0"].comparison.changes
        source = manner(plan).source
        found = copy_site(sites.store("s0"))
        push = push_of(found)
        return [c.key for c in writes.first_part(found, changes, push, source, "apply")]

    assert first(wanted, prune=False) == ["site/fra", "site/s0", "flow/copy"]
    assert pushed(sites, sites.inventory(), {"s0": wanted}).ending == Ending.DONE
    assert first({}, prune=True) == ["flow/copy", "site/fra", "site/s0"]
