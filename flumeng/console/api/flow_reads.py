"""Reads of flows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from flumeng.config import parse_written
from flumeng.config.flow_names import beside
from flumeng.console.api.read import Given, Label, Name, Paging, Parameter, Reads, Whole
from flumeng.console.console import Console, lent
from flumeng.console.shared_answers import KEEP_SECONDS
from flumeng.control.queries import history, overview
from flumeng.control.queries.counters import FlowCounters, flow_counters, task_counts
from flumeng.control.queries.dead_letters import DeadLetterTotals
from flumeng.control.queries.flow_graph import FlowGraph, graph_of, rates_of
from flumeng.control.queries.lag import LagOfFlow, lag_of_flow
from flumeng.control.queries.task_status import RolloutStatus

MOST_LETTERS = 1000

LABELS = Parameter("label", "Only with this label, KEY=VALUE; may be repeated.", list[Label])
FLOW_STATE = Parameter(
    "state",
    "Only in this state.",
    Literal["deleted", "running", "stopped", "suspended", "unreadable"],
)


READS = Reads()


def labelled(given: Given) -> dict[str, str]:
    pairs = (label.partition("=") for label in given.get("label", ()))
    return {key: value for key, _, value in pairs}


@READS.get("flow-list", "/flows", FLOW_STATE, LABELS, paging=Paging(lambda row: row.flow, beside))
def _flows(console: Console, given: Given) -> list[overview.FlowRow]:
    """All flows."""
    labels = labelled(given).items()
    with console.copy.query() as cache:
        rows = overview.flows(cache, checked=False)
    return [
        row
        for row in rows
        if row.state == given.get("state", row.state) and labels <= row.labels.items()
    ]


@READS.get("flow-show", "/flows/{flow}", shared_seconds=KEEP_SECONDS)
def _flow(console: Console, given: Given) -> overview.FlowDetail:
    """One flow: its text, tasks, and their events of the last 1, 5 and 15 minutes."""
    with console.copy.query() as cache:
        detail = overview.flow(cache, given["flow"], console.clock())
        counts = task_counts(cache, console.asking.counters, detail.tasks)
    return replace(detail, counts=counts)


@READS.get("flow-history", "/flows/{flow}/history")
def _history(console: Console, given: Given) -> list[history.RevisionRow]:
    """The kept revisions of a flow; also of a deleted one."""
    with console.copy.query() as cache:
        return history.history(cache, given["flow"])


@READS.get(
    "flow-diff",
    "/flows/{flow}/diff",
    Parameter("old", "This revision; by default the one before the current.", Whole),
    Parameter("new", "And this one; by default the current.", Whole),
)
def _difference(console: Console, given: Given) -> history.Difference:
    """The difference of two revisions."""
    with console.copy.query() as cache:
        return history.difference(cache, given["flow"], given.get("old"), given.get("new"))


@READS.get("flow-graph", "/flows/{flow}/graph", shared_seconds=KEEP_SECONDS)
def _graph(console: Console, given: Given) -> FlowGraph:
    """The way of events from sources to sinks, with the rates of the last minute."""
    with console.copy.query() as cache:
        detail = overview.flow(cache, given["flow"])
        counts = task_counts(cache, console.asking.counters, detail.tasks)
    return graph_of(parse_written(detail.text), rates_of(counts, console.clock()))


@READS.get("flow-lag", "/flows/{flow}/lag", shared_seconds=KEEP_SECONDS)
def _lag(console: Console, given: Given) -> LagOfFlow:
    """How far a flow is behind, in each partition."""
    with console.copy.query() as cache:
        return lag_of_flow(cache, console.asking.accounts, given["flow"], console.clock())


@READS.get("flow-counters", "/flows/{flow}/counters", shared_seconds=KEEP_SECONDS)
def _counters(console: Console, given: Given) -> FlowCounters:
    """Events that the sources of a flow accepted, refused and dropped; its rate limits."""
    with console.copy.query() as cache:
        return flow_counters(cache, console.asking.counters, given["flow"])[0]


@READS.get("flow-rollout-status", "/flows/{flow}/rollout")
def _rollout(console: Console, given: Given) -> RolloutStatus:
    """How far the rollout of a flow is, and why the last one went back."""
    with console.copy.query() as cache:
        return overview.flow(cache, given["flow"]).rollout_status


@READS.get("flow-dead-list", "/flows/{flow}/dead-letters", shared_seconds=KEEP_SECONDS)
def _dead(console: Console, given: Given) -> DeadLetterTotals:
    """The dead letters of a flow by place, revision and reason, if this host can read them."""
    with console.copy.query() as cache:
        return cast(
            "DeadLetterTotals", lent(console.connectors, "flow dead").kinds(cache, given["flow"])
        )


@READS.get(
    "flow-dead-show",
    "/flows/{flow}/dead-letters/newest",
    Parameter(
        "limit", "At most this many.", Annotated[int, Meta(ge=1, le=MOST_LETTERS)], default=20
    ),
    Parameter("dead_reason", "Only with this in the reason.", Name),
    shared_seconds=KEEP_SECONDS,
)
def _letters(console: Console, given: Given) -> list[dict[str, Any]]:
    """The newest dead letters of a flow, if this host can read them."""
    with console.copy.query() as cache:
        texts = lent(console.connectors, "flow dead").newest(
            cache, given["flow"], given["limit"], given.get("dead_reason", "")
        )
    return [json.loads(text) for text in texts]
