"""A flow as a graph, as text, Mermaid and Graphviz, and with the counts of its tasks."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import tree
from flumeng.config import parse_flow
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import flow_graph
from flumeng.control.queries.counters import TaskCounts, TaskCountsRow
from flumeng.control.queries.flow_graph import Rates, graph_of, rates_of
from flumeng.control.zookeeper import ABSENT
from flumeng.control.zookeeper import tree as zk_tree
from tests.testkit.cluster import come_live
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.records import COLLECT, PlannedTask

FLOW = """\
flow: web
sources:
  - syslog: {listen: "0.0.0.0:5514"}
  - tail: {paths: ["/var/log/*.log", "/srv/a b/*.log"]}
delivery: exactly-once
filters:
  - parse: {format: syslog}
    when: "attrs['source'] = 'syslog'"
  - where: 'severity <= 4 AND app <> "x#y"'
sinks:
  - files: {path: /lake, format: json}
  - delta: {path: /table}
dead_letters: {files: {path: /dead, format: json}}
"""
COUNTED = Rates(processed=120.0, dropped=20.5, parse_errors=0.25, dead_letters=0.0)


def test_text_graph_goes_from_sources_to_sinks() -> None:
    assert flow_graph.text(graph_of(parse_flow(FLOW), COUNTED)).splitlines() == [
        "flow web: durability disk, delivery exactly-once, 0.2 events/s with parse_error",
        "  source syslog 0.0.0.0:5514",
        '  source tail /var/log/*.log, "/srv/a b/*.log"',
        "  journal on disk",
        "  -> parse syslog when attrs['source'] = 'syslog'  [120 events/s]",
        '  -> where "severity <= 4 AND app <> \\"x#y\\""',
        "  -> sink files /lake (staged)  [100 events/s]",
        "  -> sink delta /table (by batch)  [100 events/s]",
        "  dead letters: files /dead",
    ]


def test_filters_show_their_on_error_action() -> None:
    for action in ("drop", "dead-letter"):
        flow = FLOW.replace("  - where", f"    on_error: {action}\n  - where")
        graph = graph_of(parse_flow(flow))
        said = f"when attrs['source'] = 'syslog', on error {action}"
        assert all(said in show(graph) for show in (flow_graph.text, flow_graph.dot))


def test_branches_are_indented() -> None:
    spec = parse_flow(
        "{flow: a, sources: [tail: {paths: [/a]}], branches: [{name: b, when: seq > 1, filters: "
        "[where: seq > 2], sinks: [noop]}, {name: c, otherwise: true, sinks: [console]}]}"
    )
    assert flow_graph.text(graph_of(spec)).splitlines()[3:] == [
        "  -> branch b when seq > 1",
        '    -> where "seq > 2"',
        "    -> sink noop",
        "  -> branch c when no other branch takes it",
        "    -> sink console",
    ]


def test_mermaid_has_a_line_for_each_node_and_edge() -> None:
    lines = flow_graph.mermaid(graph_of(parse_flow(FLOW), COUNTED)).splitlines()
    assert lines[3] == "flowchart TD"
    assert '  n2[("journal on disk")]' in lines
    assert (
        '  n4["where #quot;severity #lt;= 4 AND app #lt;#gt; \\#quot;x#35;y\\#quot;#quot;"]'
        in lines
    )
    assert '  n2 -->|"120 events/s"| n3' in lines
    assert '  n5 -->|"refused"| n7' in lines


def test_graphviz_output_is_valid() -> None:
    found = flow_graph.dot(graph_of(parse_flow(FLOW)))
    assert found.startswith('digraph "web" {\n')
    assert (
        '  n4 [shape=box, label="where \\"severity <= 4 AND app <> \\\\\\"x#y\\\\\\"\\""];' in found
    )
    assert "  n0 -> n2;\n" in found
    if dot := shutil.which("dot"):
        subprocess.run([dot, "-Tsvg"], input=found.encode(), check=True, capture_output=True)


def test_kafka_source_has_no_journal_in_the_graph() -> None:
    text = (
        "{flow: a, sources: [kafka: {brokers: ['b:1'], topics: [t]}], filters: [parse: {format: "
        "syslog}], sinks: [noop]}"
    )
    graph = graph_of(parse_flow(text))
    assert [(edge.source, edge.target) for edge in graph.edges] == [("n0", "n1"), ("n1", "n2")]
    assert [node.kind for node in graph.nodes] == ["source", "filter", "sink"]


@pytest.mark.parametrize(
    ("durability", "kept"),
    [("spill", "journal on disk, synced later"), ("memory", "journal in memory")],
)
def test_journal_shows_its_durability(durability: str, kept: str) -> None:
    spec = parse_flow(
        f"{{flow: a, sources: [tail: {{paths: [/a]}}], durability: {durability}, sinks: [noop]}}"
    )
    assert kept in flow_graph.text(graph_of(spec))


def row(task: str, since: float, processed: int, errors: int | None) -> TaskCountsRow:
    counts = {
        "processed": {"1m": processed},
        "dropped": {"1m": 0},
        "parse_errors": None if errors is None else {"1m": errors},
    }
    return TaskCountsRow("web", task, "n1", 1, since, counts)


def test_rates_sum_all_tasks_or_are_unknown() -> None:
    rows = (row("collect.0", NOON - 600, 60, 6), row("collect.1", NOON - 10, 20, None))
    found = rates_of(TaskCounts(rows), NOON)
    assert found == Rates(processed=3.0, dropped=0.0, parse_errors=None, dead_letters=None)
    assert rates_of(TaskCounts(rows, ("n2",)), NOON) == Rates()
    assert rates_of(TaskCounts(), NOON) == Rates()


def test_a_file_needs_no_cluster_and_a_name_does(tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(FLOW)
    shown = CliRunner().invoke(tree, ["flow", "graph", str(path), "--format", "dot"])
    assert shown.stdout.startswith('digraph "web"')
    as_json = CliRunner().invoke(tree, ["flow", "graph", str(path), "--json"])
    assert json.loads(as_json.stdout)["nodes"][0]["label"] == "syslog 0.0.0.0:5514"
    refused = CliRunner().invoke(tree, ["flow", "graph", "web"], env={"FLUMENG_ZK": None})
    assert refused.exit_code == 2
    assert "name the cluster of flow web with --zk or FLUMENG_ZK, or name a file" in refused.stderr


def test_a_flow_of_the_cluster_has_its_rates() -> None:
    store = FakeStore()
    zk_tree.init(store)
    apply_flow(Operator(store, "a", "", NOON), FLOW.replace("exactly-once", "at-least-once"))
    task = PlannedTask(kind=COLLECT, node="n1", epoch=2, state="assigned", partitions=())
    found = store.read(paths.plan("web"))
    plan = records.Plan(revision=1, tasks={"collect.0": task})
    store.write(paths.plan("web"), plan, found.version if found else ABSENT)
    come_live(store, "n1", since=NOON, collector="n1:3")
    shell = Shell(store.tree)
    counts = {name: {"1m": 600, "5m": 0, "15m": 0} for name in ("processed", "dropped")}
    told = {"flow": "web", "task": "collect.0", "epoch": 2, "since": NOON - 900, "counts": counts}
    shell.counted["n1:3"] = [told]
    shown = shell.run("flow", "graph", "web").stdout
    assert "when attrs['source'] = 'syslog'  [10 events/s]" in shown
    assert "sink files /lake  [0.0 events/s]" in shown
    shell.counted.clear()
    silent = shell.run("flow", "graph", "web")
    assert "events/s" not in silent.stdout
    assert "node n1 reports no event counts" in silent.stderr
