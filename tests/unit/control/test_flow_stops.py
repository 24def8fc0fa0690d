"""Where events stop, found from what tasks and sources report."""

from __future__ import annotations

from flumeng.config import parse_written
from flumeng.control.queries.counters import CounterRow
from flumeng.control.queries.flow_graph import FlowGraph, graph_of
from flumeng.control.queries.flow_stops import stops
from flumeng.control.queries.task_status import TaskRow

FLOW = """\
flow: web
sources: [tail: {paths: [/a]}]
filters: [parse: {format: syslog}]
branches:
  - {name: errors, when: "severity < 4", sinks: [files: {path: /e, format: json}]}
  - name: rest
    otherwise: true
    sinks: [elasticsearch: {hosts: ["http://es:9200"], index: web}]
dead_letters: {files: {path: /dead, format: json}}
"""


def graph() -> FlowGraph:
    return graph_of(parse_written(FLOW))


def task(state: str = "running", why: str = "", name: str = "collect.0") -> TaskRow:
    return TaskRow("web", name, "collect", "n1", 1, state, (), why, 1, 1, {}, 0)


def named(found: object, drawn: FlowGraph) -> dict[str, str]:
    assert isinstance(found, dict)
    return {drawn.node(node).label: stop.level for node, stop in found.items()}


def test_a_sink_that_refuses_stops_the_events_there() -> None:
    drawn = graph()
    why = "elasticsearch: Connection refused"
    found = stops(drawn, "running", [task("retrying", why)])
    assert named(found, drawn) == {"elasticsearch http://es:9200 web": "stopped"}
    assert [stop.why for stop in found.values()] == [f"task collect.0 is retrying: {why}"]


def test_one_of_two_tasks_lets_some_events_pass() -> None:
    drawn = graph()
    tasks = [task("retrying", "elasticsearch: away"), task(name="collect.1")]
    assert named(stops(drawn, "running", tasks), drawn) == {
        "elasticsearch http://es:9200 web": "late"
    }


def test_an_error_that_names_a_place_is_there() -> None:
    drawn = graph()
    why = "branches[errors].sinks[0].files refuses an event: disk full"
    assert named(stops(drawn, "running", [task("failed", why)]), drawn) == {"files /e": "stopped"}
    why = "filters[0].parse: no memory"
    assert named(stops(drawn, "running", [task("failed", why)]), drawn) == {
        "parse syslog": "stopped"
    }


def test_an_error_without_a_place_is_at_the_start_of_collection() -> None:
    drawn = graph()
    down = [task("down", "node n1 is not live")]
    assert named(stops(drawn, "running", down), drawn) == {"journal on disk": "stopped"}
    assert named(stops(drawn, "running", []), drawn) == {"journal on disk": "stopped"}


def test_a_paused_flow_stops_at_its_journal_and_a_held_source_at_itself() -> None:
    drawn = graph()
    assert named(stops(drawn, "suspended", [task()]), drawn) == {"journal on disk": "stopped"}
    held = CounterRow("n1", "tail /a 0", {}, "choke", 12.0)
    assert named(stops(drawn, "running", [task()], [held]), drawn) == {"tail /a": "late"}


def test_a_well_flow_is_well_everywhere_and_a_late_one_waits_in_its_journal() -> None:
    drawn = graph()
    levels = named(stops(drawn, "running", [task()]), drawn)
    assert set(levels.values()) == {"ok"}
    assert len(levels) == len(drawn.nodes) - 1, "dead letters are no part of a well flow's way"
    late = stops(drawn, "running", [task()], behind="many events wait")
    assert named(late, drawn) == {"journal on disk": "late"}


def test_a_batch_that_is_tried_again_stops_at_the_only_sink() -> None:
    drawn = graph_of(parse_written("flow: web\nsources: [generate: {}]\nsinks: [noop]\n"))
    found = stops(drawn, "running", [task("retrying", "POST http://h/: no answer")])
    assert named(found, drawn) == {"noop": "stopped"}


def test_a_lookup_table_that_is_missing_stops_the_events_at_its_filter() -> None:
    table = '{csv: /t.csv, schema: "host STRING"}'
    text = FLOW.replace("[parse: {format: syslog}]", f"[lookup: {{on: [host], table: {table}}}]")
    drawn = graph_of(parse_written(text))
    found = stops(drawn, "running", [task("retrying", "the lookup table /t.csv: no such file")])
    assert named(found, drawn) == {"lookup host": "stopped"}
