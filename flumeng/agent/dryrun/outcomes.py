"""Runs cases through the filters of their flows and reports the results, also as JUnit XML."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.etree import ElementTree as ET

import pyarrow as pa

from flumeng.agent.dryrun.cases import Case, Cases, GivenEvent, micros
from flumeng.agent.dryrun.comparison import Difference, compare
from flumeng.agent.dryrun.filter_tree import FilterTree
from flumeng.agent.dryrun.received_lines import ReceivedLines
from flumeng.agent.dryrun.running import count, joined
from flumeng.connectors.api.framing import Messages
from flumeng.events.attributes import parse_errors
from flumeng.events.lazy_batch import Session
from flumeng.platform.errors import FlumengError


@dataclass(frozen=True)
class Outcome:
    """The result of a test case. ``place``: its file and line. ``error``: why it did not run."""

    file: str
    name: str
    place: str
    seconds: float
    differences: tuple[Difference, ...] = ()
    error: str = ""

    @property
    def passed(self) -> bool:
        return not self.differences and not self.error


def run_cases(cases: Cases, session: Session, chosen: Callable[[str], bool]) -> Iterator[Outcome]:
    tree: FilterTree | None = None
    for number, case in enumerate(cases.file.cases):
        if not chosen(case.name):
            continue
        received = ReceivedLines(
            cases.spec,
            cases.file.source,
            host=case.host or cases.file.host,
            ts=micros(case.ts or cases.file.ts),
        )
        if tree is None:
            tree = FilterTree(cases.spec.stages, session, received.schema)
        begun = time.monotonic()
        differences: Sequence[Difference] = ()
        error = ""
        try:
            differences = list(_run(case, given(case, received), tree))
        except FlumengError as failed:
            error = str(failed)
        seconds = time.monotonic() - begun
        position = cases.position(number)
        yield Outcome(str(cases.path), case.name, position, seconds, tuple(differences), error)


def given(case: Case, received: ReceivedLines) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    for given in case.input:
        if isinstance(given, GivenEvent):
            origin = received.origin(given.host, given.attrs)
            ts = None if given.ts is None else micros(given.ts)
            batches += received.event(given.content, origin, ts)
        else:
            batches += received.events(Messages(given.encode().removesuffix(b"\n") + b"\n"))
    events = [batch for piece in joined([batches], received.multiline) for batch in piece]
    whole = pa.Table.from_batches(events, received.schema).combine_chunks()
    return list(whole.to_batches())


def _run(case: Case, given: Sequence[pa.RecordBatch], tree: FilterTree) -> Iterator[Difference]:
    branch = case.branch or ""
    letters = 0
    for output in tree.run(given):
        if output.failed:
            letters += count(output.batches)
        elif output.branch == branch:
            yield from _differences(case, output.batches, output.schema)
    if case.dead_letters not in (None, letters):
        yield Difference(None, f"dead_letters: expected {case.dead_letters}, found {letters}")


def _differences(
    case: Case, batches: Sequence[pa.RecordBatch], schema: pa.Schema
) -> Iterator[Difference]:
    if case.expect is not None:
        yield from compare(case.expect, batches, schema)
    for what, expected, there in (
        ("count", case.count, count(batches)),
        ("parse_errors", case.parse_errors, sum(map(parse_errors, batches))),
    ):
        if expected is not None and expected != there:
            yield Difference(None, f"{what}: expected {expected}, found {there}")


def junit(outcomes: Sequence[Outcome], messages: dict[str, str]) -> str:
    """Return JUnit XML with one suite per file. ``messages``: texts of failed cases, by place."""
    root = ET.Element("testsuites", _numbers(outcomes))
    for file, group in groupby(outcomes, key=lambda outcome: outcome.file):
        of_file = list(group)
        suite = ET.SubElement(root, "testsuite", {"name": file, **_numbers(of_file)})
        for outcome in of_file:
            seconds = f"{outcome.seconds:.3f}"
            case = ET.SubElement(
                suite, "testcase", {"classname": file, "name": outcome.name, "time": seconds}
            )
            if not outcome.passed:
                text = messages[outcome.place]
                kind = "error" if outcome.error else "failure"
                message = text.splitlines()[0]
                ET.SubElement(case, kind, {"message": message}).text = text
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, "unicode")}\n'


def _numbers(outcomes: Sequence[Outcome]) -> dict[str, str]:
    return {
        "tests": str(len(outcomes)),
        "failures": str(sum(bool(outcome.differences) for outcome in outcomes)),
        "errors": str(sum(bool(outcome.error) for outcome in outcomes)),
        "time": f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    }
