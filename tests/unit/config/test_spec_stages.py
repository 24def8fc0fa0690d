"""A flow is one list of stages: its runner, its trial and its graph see the same ones."""

from __future__ import annotations

from typing import Any

from flumeng.agent.dryrun.filter_tree import FilterTree
from flumeng.config import check_flow
from flumeng.config.stages import leading_to
from flumeng.control.queries.flow_graph import graph_of
from flumeng.events.schema import READ_SCHEMA

FLOW = check_flow("""\
flow: web
sources: [syslog: {listen: "127.0.0.1:0"}]
filters:
  - parse: {format: syslog}
    on_error: dead-letter
  - where: "severity <= 4"
dead_letters: noop
sinks: [noop]
branches:
  - name: bad
    when: "severity <= 2"
    filters: [where: "app = 'su'"]
    branches: [{name: web, when: "host = 'w'", sinks: [noop, console]}]
  - {name: rest, otherwise: true, sinks: [noop]}
""")


def no_spark() -> Any:
    raise AssertionError("nothing here needs Spark")


def test_stages_are_in_the_order_of_the_text_and_know_their_predecessor() -> None:
    assert [(stage.place, stage.branch, stage.behind) for stage in FLOW.stages] == [
        ("filters[0].parse", "", None),
        ("filters[1].where", "", 0),
        ("sinks[0].noop", "", 1),
        ("branches[bad]", "bad", 1),
        ("branches[bad].filters[0].where", "bad", 3),
        ("branches[bad].branches[web]", "bad/web", 4),
        ("branches[bad].branches[web].sinks[0].noop", "bad/web", 5),
        ("branches[bad].branches[web].sinks[1].console", "bad/web", 5),
        ("branches[rest]", "rest", 1),
        ("branches[rest].sinks[0].noop", "rest", 8),
    ]
    assert [(leaf.place, leaf.sink) for leaf in FLOW.leaves] == [
        (stage.place, number)
        for number, stage in enumerate(
            stage for stage in FLOW.stages if ".sinks[" in f".{stage.place}"
        )
    ]
    way = leading_to(FLOW.stages, FLOW.leaves[1])
    assert [stage.number for stage in way] == [0, 1, 3, 4, 5, 6]


def test_dry_run_and_graph_have_the_ends_of_the_list() -> None:
    ends = FilterTree(FLOW.stages, no_spark, READ_SCHEMA).ends
    assert [(end.branch, end.failed) for end in ends] == [
        ("", "filters[0].parse"),
        ("", ""),
        ("bad/web", ""),
        ("rest", ""),
    ]
    drawn = [node for node in graph_of(FLOW).nodes if node.kind not in ("source", "journal")]
    assert [node.kind for node in drawn[:-1]] == [
        type(stage).__name__.removesuffix("Stage").lower() for stage in FLOW.stages
    ]
    assert drawn[-1].kind == "dead letters"
