"""Pushes over random inventories, sites and interruptions; sites are fake trees in which masters
obey at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import count, pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import set_setting
from flumeng.control.zookeeper import ABSENT
from flumeng.fleet import planning
from flumeng.fleet.execution import Manner
from flumeng.fleet.plan import NOTHING, PushPlan
from flumeng.fleet.resources import Resources
from flumeng.fleet.site_copy import copy_site
from flumeng.fleet.site_state import push_of, state_of
from flumeng.fleet.waves import Ending, Outcome
from flumeng.platform.errors import ConflictError
from tests.testkit.sites import NODE, NOON, FakeSites, Fault
from zkschema import paths
from zkschema.records import Push, PushClaim, PushSource

NAMES = ("a", "b", "c")
SITES = 2
NOBODY = PushClaim(who="", push="", boot="", pid=0, since=0.0)


def text(flow: str, variant: int) -> str:
    return f"flow: {flow}\nsources: [tail: {{paths: [/{variant}]}}]\nsinks: [noop]\n"


def wanted_of(
    flows: Mapping[str, int], settings_: Mapping[str, int], chokes: Mapping[str, int], labels: int
) -> Resources:
    """Rate limits of wanted flows only."""
    found = {f"flow/{name}": text(name, variant) for name, variant in flows.items()}
    found |= {f"setting/{key}": str(value) for key, value in settings_.items()}
    found |= {f"choke/{flow}": str(rate) for flow, rate in chokes.items() if flow in flows}
    if labels:
        found |= {f"label/{NODE}/role": f"r{labels}", f"capacity/{NODE}/slots": str(labels)}
    return found


RESOURCES = st.builds(
    wanted_of,
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2)),
    st.dictionaries(
        st.sampled_from(("grace_seconds", "balance", "maintenance_nodes")), st.integers(1, 5)
    ),
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3)),
    st.integers(0, 2),
)
INVENTORIES = st.fixed_dictionaries({f"s{number}": RESOURCES for number in range(SITES)})
FAULTS = st.builds(Fault, st.integers(0, 12), st.booleans())
NUMBERS = count(1)


class Tool:
    """A user who pushes; each push is a process of its own."""

    def __init__(self) -> None:
        self.sites = FakeSites(SITES)
        for name in self.sites.trees:  # resources outside all pushes: no push may change them
            store = self.sites.store(name)
            apply_flow(Operator(store, "hand", "", NOON), text("own", 0))
            set_setting(Operator(store, "hand", "", NOON), "drain_limit_seconds", "77")

    def plan(self, wanted: Mapping[str, Resources], *, prune: bool = True) -> PushPlan:
        inventory = replace(self.sites.inventory(), digest=str(hash(str(wanted))))
        return planning.plan_push(inventory, wanted, self.sites.connect(), prune=prune)

    def push(
        self,
        wanted: Mapping[str, Resources],
        fault: Fault | None = None,
        on_failure: Literal["stop", "rollback"] = "stop",
    ) -> Outcome:
        plan = self.plan(wanted)
        source = self.source(plan)
        begun = planning.begun(plan)
        source = replace(source, push=begun.push, sites=begun.sites) if begun else source
        return self.carry_out(plan, source, "apply", fault, on_failure)

    def roll_back(self, fault: Fault | None = None, to: str = "") -> Outcome:
        back = planning.plan_rollback(self.sites.inventory(), self.sites.connect(), to=to)
        source = self.source(back.plan)
        source = replace(source, undoes="" if to else back.undoes, returns_to=to)
        source = replace(source, push=back.begun) if back.begun else source
        return self.carry_out(back.plan, source, "rollback", fault)

    def source(self, plan: PushPlan) -> PushSource:
        suffix = f"{next(NUMBERS):06d}"
        return planning.source_of(plan, who="ann", reason="", now=NOON, suffix=suffix)

    def carry_out(
        self,
        plan: PushPlan,
        source: PushSource,
        verb: str,
        fault: Fault | None,
        on_failure: Literal["stop", "rollback"] = "stop",
    ) -> Outcome:
        back = replace(source, push=f"{source.push}-back", undoes=source.push, digest="")
        manner = Manner(verb, source, back, NOBODY, on_failure)
        return self.sites.push(plan, self.sites.inventory(), manner, fault=fault)

    def resources(self) -> dict[str, Resources]:
        for name in self.sites.trees:
            self.sites.obey(name)
        return {
            name: dict(state_of(copy_site(self.sites.store(name))).resources)
            for name in self.sites.trees
        }

    def pushes(self) -> dict[str, tuple[str, Mapping[str, str]]]:
        found = {name: push_of(copy_site(self.sites.store(name))) for name in self.sites.trees}
        return {name: (push.state, dict(push.resources)) for name, push in found.items()}

    def own(self) -> dict[str, object]:
        """The resources that no push may touch."""
        found: dict[str, object] = {}
        for name in self.sites.trees:
            store = self.sites.store(name)
            flow, cluster = store.read(paths.flow("own")), store.read(paths.cluster())
            assert flow is not None
            assert cluster is not None
            found[name] = flow, cluster.value.drain_limit_seconds
        return found

    def revisions(self) -> dict[str, list[str]]:
        """The texts of all revisions, in order: none twice in a row."""
        found = {}
        for name in self.sites.trees:
            store = self.sites.store(name)
            for flow in store.children(paths.flows()):
                numbers = sorted(map(int, store.children(paths.revisions(flow))))
                texts = [store.read(paths.revision(flow, str(number))) for number in numbers]
                found[f"{name}/{flow}"] = [one.value.text for one in texts if one]
        return found


def holds(tool: Tool, wanted: Mapping[str, Resources]) -> None:
    """Sites hold the wanted resources and besides only those outside all pushes."""
    for name, found in tool.resources().items():
        besides = {"flow/own": text("own", 0), "setting/drain_limit_seconds": "77"}
        assert found == {**besides, **wanted[name]}
    for texts in tool.revisions().values():
        assert all(one != other for one, other in pairwise(texts)), texts


@pytest.mark.slow
@given(INVENTORIES, INVENTORIES)
def test_after_an_apply_nothing_is_left_to_do(
    first: Mapping[str, Resources], second: Mapping[str, Resources]
) -> None:
    tool = Tool()
    own = tool.own()
    for wanted in (first, second):
        outcome = tool.push(wanted)
        assert outcome.ending == Ending.DONE, outcome
        holds(tool, wanted)
        assert tool.plan(wanted).exit_code == NOTHING
    assert tool.own() == own


@pytest.mark.slow
@given(INVENTORIES, INVENTORIES, FAULTS, FAULTS)
def test_interrupted_apply_is_completed_by_the_next(
    first: Mapping[str, Resources], second: Mapping[str, Resources], fault: Fault, other: Fault
) -> None:
    tool = Tool()
    own = tool.own()
    tool.push(first)
    tool.push(second, replace(fault))
    tool.push(second, replace(other))
    assert tool.push(second).ending == Ending.DONE
    holds(tool, second)
    assert tool.plan(second).exit_code == NOTHING
    assert {state for state, _ in tool.pushes().values()} == {"applied"}
    assert tool.own() == own


@pytest.mark.slow
@given(INVENTORIES, INVENTORIES, FAULTS, FAULTS, st.booleans())
def test_rollback_restores_the_resources_to_the_byte(
    first: Mapping[str, Resources],
    second: Mapping[str, Resources],
    fault: Fault,
    other: Fault,
    half: bool,
) -> None:
    """Also after only half a push, and when the rollback is killed."""
    tool = Tool()
    own = tool.own()
    tool.push(first)
    before, known = tool.resources(), tool.pushes()
    tool.push(second, replace(fault) if half else None)
    if tool.resources() != before or tool.pushes() != known:
        tool.roll_back(replace(other))
        assert tool.roll_back().ending == Ending.DONE
    assert tool.resources() == before
    assert {name: owned for name, (_, owned) in tool.pushes().items()} == {
        name: owned for name, (_, owned) in known.items()
    }
    assert tool.own() == own


@pytest.mark.slow
@settings(max_examples=max(10, settings().max_examples // 4))
@given(INVENTORIES, INVENTORIES)
def test_two_concurrent_pushes_never_mix_in_a_site(
    first: Mapping[str, Resources], second: Mapping[str, Resources]
) -> None:
    tool = Tool()
    before = tool.resources()
    outcomes: list[object] = []

    def push(wanted: Mapping[str, Resources]) -> None:
        try:
            outcomes.append(tool.push(wanted))
        except ConflictError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=push, args=(wanted,)) for wanted in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for name, found in tool.resources().items():
        besides = before[name]
        either = [{**besides, **wanted[name]} for wanted in (first, second)]
        assert found in (*either, besides), outcomes


def test_concurrent_change_of_a_flow_is_not_overwritten() -> None:
    tool = Tool()
    tool.push({name: {"flow/a": text("a", 0)} for name in tool.sites.trees})
    wanted = {name: {"flow/a": text("a", 1)} for name in tool.sites.trees}
    plan = tool.plan(wanted)
    apply_flow(Operator(tool.sites.store("s1"), "hand", "", NOON), text("a", 2))
    outcome = tool.carry_out(plan, tool.source(plan), "apply", None)
    assert (outcome.done, list(outcome.failed)) == (("s0",), ["s1"])
    assert tool.resources()["s1"]["flow/a"] == text("a", 2)


def test_push_during_another_persons_push_is_refused_with_the_name() -> None:
    tool = Tool()
    wanted = {name: {"flow/a": text("a", 0)} for name in tool.sites.trees}
    plan = tool.plan(wanted)
    source = tool.source(plan)
    store = tool.sites.store("s1")
    held = PushClaim(who="bob@ops", push="p-bob", boot="elsewhere", pid=7, since=NOON)
    store.write(paths.push(), Push(claim=held), ABSENT)
    manner = Manner("apply", source, source, NOBODY)
    with pytest.raises(ConflictError, match="bob@ops"):
        tool.sites.push(tool.plan(wanted), tool.sites.inventory(), manner)


@pytest.mark.slow
@given(INVENTORIES, INVENTORIES, st.sets(st.sampled_from(("s0", "s1"))), FAULTS)
def test_failing_push_is_rolled_back_in_all_sites(
    first: Mapping[str, Resources],
    second: Mapping[str, Resources],
    breaking: set[str],
    fault: Fault,
) -> None:
    """Also when it was killed before, in sites that it had brought to their end."""
    tool = Tool()
    own = tool.own()
    tool.push(first)
    before, known = tool.resources(), tool.pushes()
    tool.push(second, replace(fault))
    for name in breaking:
        changed = {key: value for key, value in second[name].items() if key.startswith("flow/")}
        tool.sites.broken[name] = {*changed.values()} - {*first[name].values()}
    outcome = tool.push(second, on_failure="rollback")
    if outcome.ending == Ending.DONE:
        holds(tool, second)
    else:
        assert outcome.ending == Ending.ROLLED_BACK, outcome
        assert not outcome.not_reverted, outcome
        assert tool.resources() == before
        assert {name: owned for name, (_, owned) in tool.pushes().items()} == {
            name: owned for name, (_, owned) in known.items()
        }
    assert tool.own() == own
