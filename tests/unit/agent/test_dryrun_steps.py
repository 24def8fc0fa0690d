"""Steps of a flow by their names, and the events behind each."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flumeng.agent.dryrun import steps
from flumeng.agent.dryrun.filter_tree import FilterTree
from flumeng.agent.dryrun.received_lines import ReceivedLines
from flumeng.agent.dryrun.tap import Pace, spread
from flumeng.config import check_flow
from flumeng.connectors.api.framing import Messages
from flumeng.platform.errors import UserError

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
    sinks: [noop]
    branches: [{name: web, when: "host = 'w'", filters: [select: [app]], sinks: [noop]}]
  - {name: rest, otherwise: true, sinks: [noop]}
""")
LINES = b"junk\n" + b"".join(
    b"<%d>1 2026-11-23T10:15:03Z %s %s - - - x\n" % (severity, host, app)
    for severity in range(8)
    for host in (b"w", b"v")
    for app in (b"su", b"cron")
)


def no_spark() -> Any:
    raise AssertionError("nothing here needs Spark")


def count(at: str, where: str | None = None) -> int:
    """Events behind a step, dead letters aside; nothing else comes out of a flow cut there."""
    spec = steps.as_far_as(FLOW, steps.find(FLOW, at), where)
    received = ReceivedLines(spec)
    tree = FilterTree(spec.stages, no_spark, received.schema)
    ends = [end for end in tree.run(received.events(Messages(LINES))) if not end.failed]
    assert len(ends) == 1
    return sum(batch.num_rows for batch in ends[0].batches)


def test_steps_of_a_flow_are_listed() -> None:
    assert [step.place for step in steps.steps(FLOW)] == [
        "sources",
        "filters[0].parse",
        "filters[1].where",
        "sinks",
        "branches[bad]",
        "branches[bad].filters[0].where",
        "branches[bad].sinks",
        "branches[bad].branches[web]",
        "branches[bad].branches[web].filters[0].select",
        "branches[bad].branches[web].sinks",
        "branches[rest]",
        "branches[rest].sinks",
    ]


@pytest.mark.parametrize(
    ("at", "events"),
    [
        ("sources", 33),
        ("filters[0].parse", 32),
        ("filters[0]", 32),
        ("0", 32),
        ("parse", 32),
        ("1", 20),
        ("sinks", 20),
        ("branches[bad]", 12),
        ("branches[bad].filters[0]", 6),
        ("branches[bad].branches[web]", 3),
        ("select", 3),
        ("branches[rest]", 8),
    ],
)
def test_events_behind_each_step_are_those_that_passed_it(at: str, events: int) -> None:
    assert count(at) == events


def test_condition_has_the_columns_at_its_step() -> None:
    assert count("parse", "severity = 7 AND app = 'su'") == 2
    assert count("sources", "seq = 0") == 1
    with pytest.raises(UserError, match='--where: there is no column "severity"'):
        count("sources", "severity = 7")
    with pytest.raises(UserError, match="--where: "):
        count("parse", "severity =")


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("where", r"several filters are named where: filters\[1\].where, branches\[bad\]"),
        ("filters[9]", r"flow web has no step 'filters\[9\]'; "),
        ("branches[bda]", r"did you mean \"branches\[bad\]\""),
        ("", "flow web has no step ''"),
    ],
)
def test_unknown_step_is_reported(at: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        steps.find(FLOW, at)


def test_few_samples_of_many_events_are_spread_evenly() -> None:
    events = pa.RecordBatch.from_pydict({"n": range(1000)})
    assert spread(events, 4)["n"].to_pylist() == [0, 250, 500, 750]
    assert spread(events, 1000) is events


def test_number_of_shown_events_is_limited_to_the_rate() -> None:
    slept = [0.0]
    pace = Pace(10, lambda: sum(slept), slept.append)
    assert pace.room() == 10
    pace.shown(10)
    assert pace.room() == 1
    assert sum(slept) == pytest.approx(0.1)
