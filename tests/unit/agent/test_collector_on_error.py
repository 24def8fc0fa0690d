"""Events that a filter cannot process are kept, dropped or become dead letters; all others go
on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.collector.batch import Filtered
from flumeng.agent.collector.output_plans import Leaf, Plan
from flumeng.agent.collector.stages import Outputs, Stages
from flumeng.config import FlowSpec, SpecError, check_flow
from flumeng.config.guarantees import promise
from flumeng.connectors.api import dead_letters
from flumeng.connectors.api.dead_letters import ToDeadLetters
from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reports import Reports
from flumeng.events.attributes import PARSE_ERROR
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import READ_SCHEMA
from flumeng.filters import on_error
from flumeng.filters.segments import segments_of

NOTHING: Any = None
NOTES = pa.schema([pa.field("seq", pa.int64()), pa.field("error", pa.string())])
DEAD_LETTERS = pa.schema([*NOTES, pa.field("place", pa.string()), pa.field("revision", pa.int64())])
HEAD = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
DEAD = "dead_letters: {files: {path: /dead, format: json}}\n"


@dataclass(frozen=True)
class Read:
    """Events with ``bodies``, in batches of two, as a slice of a longer one."""

    bodies: tuple[str, ...]

    def __call__(self, _splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        events = pa.RecordBatch.from_pylist(
            [
                {
                    "body": body.encode(),
                    "ts": datetime(2026, 3, 1, tzinfo=UTC),
                    "host": "h",
                    "attrs": [("source", "tail")],
                    "journal": "j",
                    "seq": seq,
                    "replayed": False,
                }
                for seq, body in enumerate(("first", *self.bodies), -1)
            ],
            READ_SCHEMA,
        )
        for first in range(1, events.num_rows, 2):
            yield events.slice(first, 2)


def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        assert not [name for name in batch.schema.names if name.startswith("_")]
        errors = [dict(attrs).get(PARSE_ERROR) for attrs in batch["attrs"].to_pylist()]
        columns = [batch["seq"], pa.array(errors, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, schema=NOTES)


def buried(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch[f"dead_{name}"] for name in ("reason", "place", "revision")]
        yield pa.RecordBatch.from_arrays([batch["seq"], *columns], schema=DEAD_LETTERS)


def to_letters(batch: LazyBatch, place: str) -> Leaf:
    stage = ToDeadLetters(place, 7, False, on_error.reasons)
    letters = batch.arrow(stage, dead_letters.schema_of_dead_letters(batch.schema))
    return Leaf(1, letters.arrow(buried, DEAD_LETTERS))


def run(
    spec: FlowSpec, bodies: tuple[str, ...]
) -> tuple[list[tuple[int, str | None]], list[tuple[int, str]], Filtered]:
    """The rows of the sink with remaining errors; the dead letters with their places; the
    counts."""
    made = Reports()
    tree = Stages(segments_of(spec.stages), made)
    outputs = Outputs(lambda events, _: events.arrow(noted, NOTES), to_letters)
    events = tree.through(LazyBatch.of_splits(NOTHING, 1, Read(bodies), READ_SCHEMA))
    (whole,) = Plan.of(((),), tree.fork(events, outputs)).runs
    stage = whole.batch.all_arrow
    assert stage is not None
    with reports.collecting() as of_run:
        found = [row for out in stage(iter([])) for row in out.to_pylist()]
    made.add(of_run)
    by_sink: dict[int, list[Any]] = {0: [], 1: []}
    for number, rows in whole.rows(found):
        by_sink[number] += rows
    assert {row["revision"] for row in by_sink[1]} <= {7}
    assert all(row["error"] for row in by_sink[1])
    return (
        [(row["seq"], row["error"]) for row in by_sink[0]],
        [(row["seq"], row["place"]) for row in by_sink[1]],
        tree.filtered(),
    )


def flow(*filters: tuple[str, str, str]) -> str:
    """A filter for each kind of dead letter, with its condition and ``on_error``."""
    listed = [
        f"  - parse: {{format: regex, pattern: '(?P<has_{letter}>{letter})'}}\n"
        f"    on_error: {kind}\n" + (f'    when: "{when}"\n' if when else "")
        for letter, kind, when in filters
    ]
    return f"{HEAD}{DEAD}filters:\n{''.join(listed)}" if listed else HEAD


FAILED, FINE = "attrs['parse_error'] is not null", "attrs['parse_error'] is null"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "drop", "dead-letter"]), st.sampled_from(["", FAILED, FINE])
        ),
        max_size=4,
    ),
    st.lists(st.text("abcd", max_size=4), max_size=7),
)
def test_failing_filters_behave_as_their_model(
    filters: list[tuple[str, str]], bodies: list[str]
) -> None:
    """An error of an earlier filter that was kept is none of a later one, and is not lost."""
    named = [(letter, kind, when) for letter, (kind, when) in zip("abcd", filters, strict=False)]
    kept: list[tuple[int, str | None]] = []
    letters: list[tuple[int, str]] = []
    dropped: Counter[str] = Counter()
    failed: set[int] = set()
    for seq, body in enumerate(bodies):
        error: str | None = None
        for number, (letter, kind, when) in enumerate(named):
            chosen = not when or (error is None) == (when == FINE)
            if not chosen or letter in body:
                continue
            place = f"filters[{number}].parse"
            failed.add(seq)
            if kind == "drop":
                dropped[place] += 1
                break
            if kind == "dead-letter":
                letters.append((seq, place))
                break
            error = "regex: no match"
        else:
            kept.append((seq, error))
    found_kept, found_letters, counts = run(check_flow(flow(*named)), tuple(bodies))
    assert found_kept == kept
    assert sorted(found_letters) == letters
    assert +Counter(counts.failed) == dropped
    assert (counts.dropped, counts.parse_errors) == (dropped.total(), len(failed))


def test_failure_in_a_branch_names_the_branch() -> None:
    text = f"""{HEAD.replace("sinks: [noop]", "")}{DEAD}
branches:
  - name: all
    filters:
      - parse: {{format: regex, pattern: '(?P<x>x)'}}
      - parse: {{format: regex, pattern: '(?P<y>y)'}}
        on_error: dead-letter
      - where: "seq < 2"
    sinks: [noop]
"""
    kept, letters, counts = run(check_flow(text), ("xy", "y", "x", "xy"))
    assert kept == [(0, None), (1, "regex: no match")]
    assert letters == [(2, "branches[all].filters[1].parse")]
    assert (counts.dropped, counts.parse_errors) == (1, 2)


@pytest.mark.parametrize(
    ("rest", "path", "said"),
    [
        (
            "filters: [{parse: {format: syslog}, on_error: dead-letter}]",
            "filters[0].on_error",
            "the flow has no sink for dead letters: give it dead_letters",
        ),
        (
            "branches: [{name: a, filters: [{parse: {format: syslog}, on_error: dead-letter}], "
            "sinks: [noop]}]",
            "branches[0].filters[0].on_error",
            "the flow has no sink for dead letters: give it dead_letters",
        ),
        (
            "filters: [{where: 'seq > 1', on_error: drop}]",
            "filters[0].on_error",
            "where cannot fail for an event: leave on_error out",
        ),
        (
            "filters: [{parse: {format: syslog}, on_error: ignore}]",
            "filters[0].on_error",
            "expected one of keep, drop, dead-letter",
        ),
    ],
)
def test_invalid_on_error_is_refused(rest: str, path: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_flow(f"{HEAD}{rest}\n")
    (problem,) = caught.value.problems
    assert problem.path == path
    assert problem.message.startswith(said)


def test_guarantees_mention_dropped_and_dead_lettered_events() -> None:
    found = promise(
        check_flow(flow(("a", "drop", ""), ("b", "dead-letter", ""), ("c", "keep", "")))
    )
    assert [text for text in found if "cannot process" in text] == [
        "An event that parse cannot process is dropped, and counted.",
        "An event that parse cannot process goes to dead_letters.",
    ]
