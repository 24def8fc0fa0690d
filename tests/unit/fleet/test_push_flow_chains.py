"""A push that changes a flow's filters changes the effective texts of its readers."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from cli.push_output import show_plan
from flumeng.control.commands.chains import compose
from flumeng.control.commands.cursors import Cursor
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.fleet import planning, site_state, writes
from flumeng.fleet.execution import Manner
from flumeng.fleet.plan import PushPlan, from_json, moved_since, to_json
from flumeng.fleet.resources import Resources
from flumeng.fleet.site_copy import copy_site
from flumeng.fleet.waves import Ending, Outcome
from flumeng.platform.errors import UserError
from tests.testkit.sites import NOON, FakeSites
from zkschema import paths
from zkschema.records import PushClaim, PushSource

NOBODY = PushClaim(who="", push="", boot="", pid=0, since=0.0)


def web(team: str) -> Resources:
    return {
        "flow/web": "flow: web\nsources: [tail: {paths: [/a]}]\n"
        f"filters: [set: {{team: \"'{team}'\"}}]\nsinks: [noop]\n"
    }


def reader(name: str, padding: str = "") -> Resources:
    text = f"flow: {name}\nsources: [flow: {{name: web, after: filters}}]\nsinks: [noop]\n"
    return {f"flow/{name}": f"{text}# {padding}\n"}


def planned(sites: FakeSites, wanted: Resources) -> PushPlan:
    return planning.plan_push(sites.inventory(), {"s0": wanted}, sites.connect())


def pushed(sites: FakeSites, wanted: Resources) -> Outcome:
    plan = planned(sites, wanted)
    source = planning.source_of(plan, who="ann", reason="", now=NOON, suffix="x")
    return sites.push(plan, sites.inventory(), Manner("apply", source, source, NOBODY))


def with_reader(*others: Mapping[str, str]) -> FakeSites:
    sites = FakeSites(1)
    wanted = {**web("a"), **reader("copy")}
    for other in others:
        wanted |= other
    assert pushed(sites, wanted).ending == Ending.DONE
    return sites


def test_plan_names_the_recomposed_flows(capsys: pytest.CaptureFixture[str]) -> None:
    sites = with_reader({"flow/plain": web("a")["flow/web"].replace("web", "plain")})
    wanted = {**web("b"), **reader("copy")}
    plan = planned(sites, wanted)
    assert [change.key for change in plan.sites["s0"].comparison.changes] == ["flow/web"]
    assert plan.sites["s0"].recomposed == {"copy": "filters of web changed"}
    show_plan(plan)
    shown = capsys.readouterr().out
    assert (
        "~ flow/copy: its text is unchanged, its composed text changes: filters of web changed"
        in shown
    )
    assert from_json(to_json(plan)).sites["s0"].recomposed == {"copy": "filters of web changed"}
    for version in (True, 2, "1", None):
        with pytest.raises(UserError, match="this is no plan of format 1: make one with"):
            from_json({**to_json(plan), "v": version})


def test_plan_is_outdated_when_a_flow_has_begun_to_read() -> None:
    sites = with_reader()
    wanted = {**web("b"), **reader("copy")}
    before = planned(sites, wanted)
    assert pushed(sites, {**web("a"), **reader("copy"), **reader("late")}).ending == Ending.DONE
    assert moved_since(before, planned(sites, wanted)) == [
        "site s0: flow late reads other flows than when the plan was made"
    ]


def test_push_waits_for_the_recomposed_flows() -> None:
    sites = with_reader()
    wanted = {**web("b"), **reader("copy")}
    runs = compose(sites.store("s0"), {"web": wanted["flow/web"]}).flows["copy"].effective
    sites.broken["s0"] = {runs}
    outcome = pushed(sites, wanted)
    assert outcome.ending == Ending.FAILED
    assert "copy" in outcome.failed["s0"]


@pytest.mark.slow
def test_recomposed_flows_count_for_the_size_of_a_transaction() -> None:
    padding = Random(1).randbytes(30_000).hex()
    sites = with_reader(*(reader(f"r{number}", padding) for number in range(8)))
    others = {
        f"flow/o{number}": web("a")["flow/web"].replace("web", f"o{number}") + f"# {padding}\n"
        for number in range(40)
    }
    wanted = {**web("b"), **reader("copy"), **others}
    copy = copy_site(sites.store("s0"))
    changes = planned(sites, wanted).sites["s0"].comparison.changes
    source = PushSource(push="p", inventory="i", digest="d", author="a", reason="", time=0.0)
    part = writes.first_part(copy, changes, site_state.push_of(copy), source, "apply")
    assert 0 < len(part) < len(changes)
    assert pushed(sites, wanted).ending == Ending.DONE
    revisions = sites.store("s0").children(paths.revisions("r7"))
    assert len(revisions) == 2


def test_flow_of_another_site_is_pushed_where_the_site_is_known() -> None:
    sites = FakeSites(1)
    text = "flow: copy\nsources: [flow: {site: fra, name: web}]\nsinks: [noop]\n"
    wanted = {"flow/copy": text}
    refused = planned(sites, wanted).sites["s0"].comparison.conflicts
    assert "the site fra, which is unknown here" in str(refused)
    operator = Operator(sites.connect()(sites.inventory().sites["s0"]), "ann", "", NOON)
    name_cluster(operator, "s0")
    add_site(operator, "fra", ["g1:9003"], "")
    assert pushed(sites, {**wanted, **web("a")}).ending == Ending.DONE
    Cursor.take(operator.store, "web", "lon:copy", keep_seconds=60.0, begin=dict)
    assert pushed(sites, {**wanted, **web("b")}).ending == Ending.DONE
