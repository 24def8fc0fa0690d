"""Cases run through the filters of their flows, and what came of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from flumeng.agent.dryrun.cases import Case, Cases, GivenEvent
from flumeng.agent.dryrun.comparison import Difference, compare
from flumeng.agent.dryrun.filter_tree import FilterTree
from flumeng.agent.dryrun.moments import micros
from flumeng.agent.dryrun.received import ReceivedLines
from flumeng.agent.dryrun.running import count, joined
from flumeng.connectors.api.framing import Messages
from flumeng.events.lazy_batch import Session
from flumeng.events.reasons import parse_errors
from flumeng.platform.errors import FlumengError


@dataclass(frozen=True)
class Outcome:
    """``place`` is where the case stands. ``error``: why it could not be run to its end."""

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
    """Each case whose name is ``chosen``, as a batch of its own. Raises what ``FilterTree``
    raises."""
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
            differences = list(_run(case, _given(case, received), tree))
        except FlumengError as failed:
            error = str(failed)
        seconds = time.monotonic() - begun
        place = cases.place(number)
        yield Outcome(str(cases.path), case.name, place, seconds, tuple(differences), error)


def _given(case: Case, received: ReceivedLines) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    for given in case.input:
        if isinstance(given, GivenEvent):
            origin = received.origin(given.host, given.attrs)
            ts = None if given.ts is None else micros(given.ts)
            found += received.event(given.content, origin, ts)
        else:
            found += received.events(Messages(given.encode().removesuffix(b"\n") + b"\n"))
    events = [batch for piece in joined([found], received.multiline) for batch in piece]
    whole = pa.Table.from_batches(events, received.schema).combine_chunks()
    return list(whole.to_batches())


def _run(case: Case, given: Sequence[pa.RecordBatch], tree: FilterTree) -> Iterator[Difference]:
    branch = case.branch or ""
    letters = 0
    for found in tree.run(given):
        if found.failed:
            letters += count(found.batches)
        elif found.branch == branch:
            yield from _differences(case, found.batches, found.schema)
    if case.dead_letters not in (None, letters):
        yield Difference(None, f"dead_letters: expected {case.dead_letters}, found {letters}")


def _differences(
    case: Case, found: Sequence[pa.RecordBatch], schema: pa.Schema
) -> Iterator[Difference]:
    if case.expect is not None:
        yield from compare(case.expect, found, schema)
    for what, expected, there in (
        ("count", case.count, count(found)),
        ("parse_errors", case.parse_errors, sum(map(parse_errors, found))),
    ):
        if expected is not None and expected != there:
            yield Difference(None, f"{what}: expected {expected}, found {there}")
