"""The alert rules, the dashboard and the docs name only metrics and labels that there are.

That the table's metrics are really served is seen in ``tests/live/test_standalone.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from flumeng.platform.metrics.page import PROCESS
from flumeng.platform.metrics.table import METRICS

TOP = Path(__file__).parents[3]
ALERTS = TOP / "conf" / "prometheus" / "alerts.yaml"
PROMETHEUS = TOP / "conf" / "prometheus" / "prometheus.yaml"
DASHBOARD = TOP / "conf" / "grafana" / "flumeng.json"
EVERYWHERE = {PROCESS, "instance", "job"}
"""The labels of every sample: ours, and those that Prometheus adds."""

LABELS: dict[str, set[str]] = {"up": EVERYWHERE}
for metric in METRICS:
    labels = EVERYWHERE | set(metric.labels)
    if metric.kind == "histogram":
        LABELS |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
        LABELS[f"{metric.name}_bucket"] = labels | {"le"}
    else:
        LABELS[metric.name] = labels


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL), with Grafana's variables filled in."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "5m")
            yield panel["title"], text.replace("$flow", ".*").replace("$instance", ".*")


EXPRESSIONS = list(expressions())


def selectors(expression: Any) -> Iterator[Any]:
    """All vector selectors in a parsed expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for name in ("vector_selector", "expr", "lhs", "rhs"):
        if hasattr(expression, name):
            yield from selectors(getattr(expression, name))
    for argument in getattr(expression, "args", ()):
        yield from selectors(argument)


def grouped(expression: Any) -> Iterator[tuple[set[str], Any]]:
    """(labels, expression) of each ``by`` in it."""
    if isinstance(expression, promql_parser.AggregateExpr) and expression.modifier is not None:
        yield set(expression.modifier.labels), expression.expr
    for name in ("expr", "lhs", "rhs"):
        if hasattr(expression, name):
            yield from grouped(getattr(expression, name))
    for argument in getattr(expression, "args", ()):
        yield from grouped(argument)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "text"), EXPRESSIONS)
def test_expression_parses_and_selects_existing_metrics(where: str, text: str) -> None:
    parsed = promql_parser.parse(text)
    found = list(selectors(parsed))
    assert found, f"{where} selects nothing"
    for selector in found:
        assert selector.name in LABELS, where
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= LABELS[selector.name], where
    for labels, below in grouped(parsed):
        for selector in selectors(below):
            assert labels <= LABELS[selector.name], where


@pytest.mark.parametrize(
    "text",
    ["sum(rate(flumeng_no_such_total[5m]))", "sum by (flow) (process_threads)", "sum(rate(up)"],
)
def test_expression_check_finds_wrong_names(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        test_expression_parses_and_selects_existing_metrics("here", text)


def test_every_rate_is_of_a_counter() -> None:
    counters = {metric.name for metric in METRICS if metric.kind == "counter"}
    for where, text in EXPRESSIONS:
        for name in re.findall(r"\b(?:rate|increase)\((\w+)", text):
            assert name in counters or name.endswith(("_bucket", "_sum", "_count")), where
        for name in re.findall(r"\b(?:deriv|predict_linear)\((\w+)", text):
            assert name not in counters, where


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alert_has_a_problem_and_advice(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Flumeng[A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    if "for" in rule:
        promql_parser.parse_duration(rule["for"])
    parsed = promql_parser.parse(rule["expr"])
    kept = set.intersection(
        *[labels for labels, _ in grouped(parsed)] or [LABELS["up"] | {"child"}]
    )
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= kept, rule["alert"]


def test_prometheus_configuration_names_the_rules() -> None:
    configuration = yaml.safe_load(PROMETHEUS.read_text())
    assert configuration["rule_files"] == [ALERTS.name]
    (job,) = configuration["scrape_configs"]
    assert job["job_name"] == "flumeng"


def test_dashboard_panels_have_distinct_ids_and_places() -> None:
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    places = [tuple(sorted(panel["gridPos"].items())) for panel in board["panels"]]
    assert len(places) == len(set(places))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            (name,) = re.findall(r"label_values\((\w+), \w+\)", variable["definition"])
            assert name in LABELS


def test_every_metric_in_the_docs_exists() -> None:
    pages = [*(TOP / "docs").rglob("*.md"), TOP / "README.md", *(TOP / "conf").rglob("*.yaml")]
    parts = {metric.name.removeprefix("flumeng_").split("_")[0] for metric in METRICS}
    for page in pages:
        for name in re.findall(r"\bflumeng_\w+", page.read_text()):
            if name.removeprefix("flumeng_").split("_")[0] in parts:
                assert name in LABELS or f"{name}_count" in LABELS, page


@pytest.mark.parametrize(
    "metric",
    [
        "flumeng_flow_lag_seconds",
        "flumeng_flow_lag_events",
        "flumeng_collect_failures_total",
        "flumeng_sink_retries_total",
        "flumeng_collect_dead_letters_total",
        "flumeng_collect_gone_total",
        "flumeng_ingest_missed_files_total",
        "flumeng_ingest_cut_files_total",
        "flumeng_ingest_skipped_files_total",
        "flumeng_ingest_unauthorized_total",
        "flumeng_link_up",
        "flumeng_link_downs_total",
        "flumeng_link_answer_seconds",
        "flumeng_link_lease_time_used_ratio",
        "flumeng_link_lease_room_used_ratio",
        "flumeng_link_lost_events",
        "flumeng_lease_time_used_ratio",
        "flumeng_lease_room_used_ratio",
        "flumeng_lease_lost_events",
        "flumeng_collect_looped_total",
    ],
)
def test_lags_losses_and_refusals_have_an_alert_and_a_panel(metric: str) -> None:
    alerts = {rule["alert"] for rule in rules()}
    naming = {where for where, text in EXPRESSIONS if re.search(rf"\b{metric}\b", text)}
    assert naming & alerts, "no alert"
    assert naming - alerts, "no panel"


def test_dashboard_shows_the_lag_of_isolated_parts_apart() -> None:
    (matcher,) = re.findall(r'flumeng_flow_lag_seconds\{flow=~"(\.\+[^"]+)"', str(dashboard()))
    assert re.fullmatch(matcher, "web~errors")
    assert not re.fullmatch(matcher, "web")
