"""Test cases of a flow: input events, and the events expected after its filters."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from flumeng.config import FlowSpec, document
from flumeng.config.decode import INVALID, Decoder
from flumeng.config.flow_files import FlowFilesError, Unfit, content_of, read_flows
from flumeng.platform.options.option import option
from flumeng.platform.options.problems import Problem, SpecError, nearest

EXAMPLE = "2026-01-01T00:00:00Z"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(text: str) -> int:
    """Return an ISO 8601 time, by default in UTC, in microseconds since 1970. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"expected a time, like {EXAMPLE}") from None
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds


MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 500_000
RECEIVED = EXAMPLE
"""The default receive time. It is fixed, so that a case gives the same result every day."""


def _check_time(text: str) -> None:
    micros(text)


def _check_base64(text: str) -> None:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("expected base64") from None


@dataclass(frozen=True)
class GivenEvent:
    """An event that a line cannot express."""

    body: str | None = option(
        doc="Its body.", example='"<34>1 - web1 su - - - failed"', default=None
    )
    body_base64: str | None = option(
        doc="Its body in base64, when it is not UTF-8.", check=_check_base64, default=None
    )
    host: str | None = option(doc="Its host.", example="web1", default=None)
    ts: str | None = option(
        doc="Its receive time.", check=_check_time, example=RECEIVED, default=None
    )
    attrs: Mapping[str, str] = option(
        doc="Its attributes, beside `source`.", example='{peer: "192.0.2.1:514"}', factory=dict
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if (self.body is None) == (self.body_base64 is None):
            yield "", "expected either body or body_base64"

    @property
    def content(self) -> bytes:
        if self.body_base64 is not None:
            return base64.b64decode(self.body_base64)
        return (self.body or "").encode()


@dataclass(frozen=True)
class Case:
    """Events that are one batch of the flow, and the events expected behind its filters."""

    name: str = option(doc="The name of the case, as reports show it.", example="warnings pass")
    input: tuple[str | GivenEvent, ...] = option(
        doc="The input: lines, or events.", example='["<34>1 - web1 su - - - failed"]'
    )
    expect: tuple[yaml.Node, ...] | None = option(
        doc="The expected events, in any order, each with the columns to compare.",
        example="[{app: su, severity: 2}]",
        default=None,
    )
    branch: str | None = option(
        doc="The branch whose output is compared: `errors`, or `errors/late` for a branch within "
        "another one. When not given, the events for the flow's own sinks.",
        example="errors",
        default=None,
    )
    count: int | None = option(doc="The expected number of events.", minimum=0, default=None)
    parse_errors: int | None = option(
        doc="The expected number of events with the attribute `parse_error`.",
        minimum=0,
        default=None,
    )
    dead_letters: int | None = option(
        doc="The expected number of dead letters of filters, over all branches.",
        minimum=0,
        default=None,
    )
    host: str | None = option(doc="The host of events without one.", default=None)
    ts: str | None = option(
        doc="The receive time of events without one.",
        check=_check_time,
        example=RECEIVED,
        default=None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        expected = (self.expect, self.count, self.parse_errors, self.dead_letters)
        if all(value is None for value in expected):
            yield "", "the case expects nothing: set expect, count, parse_errors or dead_letters"


@dataclass(frozen=True)
class CaseFile:
    """A file of cases for one flow."""

    flow: str = option(doc="The flow's file, relative to this one.", example="web-logs.yaml")
    cases: tuple[Case, ...] = option(
        doc="The cases.", minimum=1, example='[{name: one, input: ["a line"], count: 1}]'
    )
    source: int = option(
        doc="The source of the flow that reads the lines, counted from 0.", minimum=0, default=0
    )
    host: str | None = option(doc="The host of all events without one.", default=None)
    ts: str = option(
        doc="The receive time of all events without one.",
        check=_check_time,
        example=RECEIVED,
        default=RECEIVED,
    )


@dataclass(frozen=True)
class Cases:
    """A parsed file of test cases and the flow that it tests. ``lines``: line numbers by path."""

    path: Path
    file: CaseFile
    spec: FlowSpec
    lines: Mapping[str, int] = field(default_factory=dict)

    def position(self, number: int) -> str:
        return f"{self.path}:{self.lines[f'cases[{number}]']}"


def read_cases(paths: Sequence[Path]) -> list[Cases]:
    """Read files of test cases. Raises FlowFilesError with every problem of all files."""
    problems: list[tuple[Path, Problem]] = []
    case_files = []
    for path in paths:
        try:
            case_files.append(_read(path))
        except SpecError as error:
            problems += [(path, problem) for problem in error.problems]
        except FlowFilesError as error:
            problems += error.problems
    if problems:
        raise FlowFilesError(problems)
    return case_files


def _read(path: Path) -> Cases:
    root = document.compose(_text(path), max_bytes=MAX_BYTES, max_nodes=MAX_NODES)
    decoder = Decoder()
    file = decoder.mapping(CaseFile, root, "")
    if file is INVALID:
        raise SpecError(decoder.problems)
    assert isinstance(file, CaseFile)
    (flow,) = read_flows([path.parent / file.flow])
    if file.source >= len(flow.spec.sources):
        text = f"flow {flow.spec.flow} has {len(flow.spec.sources)} sources, numbered from 0"
        raise SpecError([Problem(decoder.lines["source"], "source", text)])
    ends = [leaf.branch for leaf in flow.spec.leaves]
    unknown = [
        Problem(decoder.lines[f"cases[{number}]"], f"cases[{number}]", _no_end(case.branch, ends))
        for number, case in enumerate(file.cases)
        if (case.branch or "") not in ends
    ]
    if unknown:
        raise SpecError(unknown)
    return Cases(path, file, flow.spec, decoder.lines)


def _no_end(branch: str | None, ends: Sequence[str]) -> str:
    if branch is None:
        return f"set `branch`: the flow has no sinks outside of branches {', '.join(ends)}"
    return f"the flow has no branch {branch} with sinks; {nearest(branch, filter(None, ends))}"


def _text(path: Path) -> str:
    try:
        return content_of(path, MAX_BYTES).decode()
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        text = "is not UTF-8"
    except Unfit as error:
        text = str(error)
    raise SpecError([Problem(0, "", text)])
