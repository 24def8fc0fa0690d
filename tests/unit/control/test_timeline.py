"""The changes of a flow on one time axis."""

from __future__ import annotations

import pytest

from flumeng.control.commands.flows import apply_flow, keep_tap
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import overview
from flumeng.control.queries.timeline import names, timeline
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.cluster import add_node, new_cluster
from tests.testkit.store import FakeStore
from tests.unit.console.flow_cluster import damage
from zkschema import paths, records
from zkschema.records import PlannedTask, Story, StoryLine

FLOW = "{flow: web, sources: [tail: {paths: [/a]}], sinks: [noop]}"


def cluster() -> FakeStore:
    store = new_cluster()
    apply_flow(Operator(store, "ann", "", 10.0), FLOW)
    add_node(store, "n1")
    task = PlannedTask(kind="collect", node="n1", epoch=1, state="assigned")
    plan = records.Plan(revision=1, tasks={"collect.0": task})
    found = store.read(paths.plan("web"))
    store.write(paths.plan("web"), plan, ANY if found else ABSENT)
    return store


def test_event_log_and_audit_are_merged_newest_first() -> None:
    store = cluster()
    lines = (
        StoryLine(time=20.0, who="web/collect.0", event="status", before="", after="starting"),
        StoryLine(
            time=30.0, who="web/collect.0", event="status", before="starting", after="running"
        ),
        StoryLine(time=31.0, who="shop/collect.0", event="status", before="", after="running"),
        StoryLine(time=32.0, who="webs/collect.0", event="status", before="", after="running"),
    )
    store.write(paths.story("n1"), Story(lines=lines), ABSENT)
    keep_tap(Operator(store, "bob", "why not", 25.0), "web", at="sources", where=None)
    apply_flow(Operator(store, "ann", "", 26.0), FLOW.replace("web", "webs"))
    found = timeline(store, overview.flow(store, "web"))
    assert [(moment.time, moment.lane, moment.what) for moment in found.moments] == [
        (30.0, "node", "web/collect.0: status starting to running"),
        (25.0, "audit", "flow tap web --at sources"),
        (20.0, "node", "web/collect.0: status starting"),
        (10.0, "audit", "flow apply web (revision 1)"),
    ]


def test_a_damaged_event_log_is_named_and_the_rest_is_shown() -> None:
    store = cluster()
    store.write(paths.story("n1"), Story(), ABSENT)
    damage(store, paths.story("n1"))
    found = timeline(store, overview.flow(store, "web"))
    assert [moment.lane for moment in found.moments] == ["audit"]
    assert "event log of node n1 cannot be read" in found.problems[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flow apply web", True),
        ("task restart web/collect.0", True),
        ("flow apply webs", False),
        ("flow apply a-web", False),
        ("flow apply web:errors", False),
        ("flow apply my.web", False),
    ],
)
def test_a_name_is_found_as_a_whole(text: str, expected: bool) -> None:
    assert names(text, "web") == expected
