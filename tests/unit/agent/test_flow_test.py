"""`flumeng flow test`: cases beside a flow, their comparison, and the report of a failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from cli.main import tree
from flumeng.agent.dryrun.cases import Case, CaseFile, GivenEvent
from flumeng.agent.dryrun.comparison import compare, matches
from flumeng.config import document

CONF = Path(__file__).parents[3] / "conf" / "flows"
FLOW = """\
flow: web
sources:
  - syslog: {listen: "127.0.0.1:0"}
  - tail: {paths: [/var/log/a.log]}
filters:
  - parse: {format: syslog}
  - where: "severity <= 4 OR severity IS NULL"
sinks: [noop]
"""
WARNING = "<34>1 2026-01-01T10:15:03.003Z web1 su - - - failed"

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Write cases beside a flow and run them."""
    (tmp_path / "web.yaml").write_text(FLOW)

    def written(cases: str, *words: str, head: str = "flow: web.yaml") -> Result:
        path = tmp_path / "web.test.yaml"
        path.write_text(f"{head}\ncases:\n{cases}")
        result = CliRunner().invoke(tree, ["flow", "test", str(path), *words])
        result.stdout_bytes = result.stdout_bytes.replace(f"{tmp_path}/".encode(), b"")
        return result

    return written


def test_cases_pass_when_everything_is_as_expected(run: Run) -> None:
    result = run(
        f"""\
  - name: two in any order
    input: ["{WARNING}", junk, "<38>dropped"]
    expect:
      - {{attrs: {{source: syslog, parse_error: "syslog: no priority"}}, severity: null}}
      - {{host: web1, severity: 2, app: su, ts: 2026-01-01T11:15:03.003+01:00, replayed: false}}
    count: 2
    parse_errors: 1
  - name: exact events
    input:
      - {{body_base64: PDE+/w==, host: h, ts: 2026-01-02T00:00:00Z, attrs: {{peer: "a:1"}}}}
    expect: [{{body: "<1>\ufffd", host: h, ts: 2026-01-02T00:00:00Z, attrs: {{peer: "a:1"}}}}]
  - name: nothing
    input: []
    expect: []
"""
    )
    assert (result.exit_code, result.stdout) == (0, "3 cases, none failed\n")


def test_differences_are_reported_with_their_line(run: Run, tmp_path: Path) -> None:
    junit = tmp_path / "out.xml"
    result = run(
        f"""\
  - name: another severity
    input: ["{WARNING}"]
    expect:
      - host: web1
        severity: 3
  - name: too few
    input: []
    expect: [{{host: web1}}]
  - name: too many
    input: ["<1>a"]
    expect: []
    parse_errors: 2
  - name: another column
    input: ["<1>a"]
    expect: [{{severty: 1}}]
  - name: right
    input: ["<1>a"]
    count: 1
""",
        "--junit",
        str(junit),
    )
    assert result.exit_code == 1
    assert result.stdout == (
        "web.test.yaml:3: another severity: failed\n"
        "  line 7: event 0: severity: expected 3, found 2\n"
        "web.test.yaml:8: too few: failed\n"
        "  line 10: missing event: {host: web1}\n"
        "web.test.yaml:11: too many: failed\n"
        '  unexpected event 0: {"body":"<1>a","ts":"2026-01-01T00:00:00.000000Z",'
        '"host":"127.0.0.1","attrs":{"source":"syslog"},"journal":"trial","seq":0,'
        '"replayed":false,"facility":0,"severity":1,"message":"a"}\n'
        "  parse_errors: expected 2, found 0\n"
        "web.test.yaml:15: another column: failed\n"
        '  line 17: events have no column severty; did you mean "severity"?\n'
        "5 cases, 4 failed\n"
    )
    suites = ET.parse(junit).getroot()
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("5", "4", "0")
    failed = [
        case.get("name") for case in suites.iter("testcase") if case.find("failure") is not None
    ]
    assert failed == ["another severity", "too few", "too many", "another column"]


def test_cases_are_chosen_by_their_names(run: Run) -> None:
    cases = "  - {name: Good one, input: [], count: 0}\n  - {name: bad, input: [], count: 1}\n"
    assert run(cases, "-k", "good").stdout == "1 case, none failed\n"
    none = run(cases, "-k", "ugly")
    assert none.exit_code == 2
    assert "no case has 'ugly' in its name" in none.stderr


def test_lines_are_those_of_the_source_and_the_settings_of_the_file(run: Run) -> None:
    case = """\
  - name: a
    input: ["<1>a\\n\\n<1>b"]
    expect: [{host: h, attrs: {source: tail}}, {message: null}, {ts: 2026-02-01T00:00:00Z}]
"""
    head = "flow: web.yaml\nsource: 1\nhost: h\nts: 2026-02-01T00:00:00Z"
    result = run(case, head=head)
    assert (result.exit_code, result.stdout) == (0, "1 case, none failed\n")


def test_case_names_its_branch(run: Run, tmp_path: Path) -> None:
    branches = "branches: [{name: bad, when: severity < 3, sinks: [noop]}]\n"
    (tmp_path / "web.yaml").write_text(FLOW.replace("sinks: [noop]\n", branches))
    bad = f"""\
  - {{name: a, input: ["{WARNING}", "<4>x"], branch: bad, expect: [{{app: su}}]}}
"""
    assert run(bad).stdout == "1 case, none failed\n"
    result = run(bad + "  - {name: b, input: [], count: 0}\n")
    assert "cases[1]: set `branch`: the flow has no sinks outside of branches bad" in result.stderr
    result = run(bad + "  - {name: b, branch: bat, input: [], count: 0}\n")
    assert 'cases[1]: the flow has no branch bat with sinks; did you mean "bad"?' in result.stderr


def test_dead_letters_are_counted(run: Run, tmp_path: Path) -> None:
    text = FLOW.replace("{format: syslog}", "{format: syslog}\n    on_error: dead-letter")
    (tmp_path / "web.yaml").write_text(f"{text}dead_letters: noop\n")
    case = f'  - {{name: a, input: ["{WARNING}", junk], count: 1, dead_letters: 1}}\n'
    assert run(case).stdout == "1 case, none failed\n"
    wrong = run(case.replace("dead_letters: 1", "dead_letters: 2"))
    assert "  dead_letters: expected 2, found 1\n" in wrong.stdout


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("{name: a, input: []}", "line 3: cases[0]: the case expects nothing: set expect, count"),
        ("{name: a, inputs: [], count: 1}", 'did you mean "input"?'),
        ("{name: a, input: [{host: b}], count: 1}", "expected either body or body_base64"),
        ("{name: a, input: [{body_base64: '!'}], count: 1}", "expected base64; found"),
        ("{name: a, input: [], count: 1, ts: noon}", "expected a time, like 2026-01-01T00:00:00Z"),
        ("{name: a, input: [], count: many}", "expected a whole number"),
        ("{name: a, input: [], expect: a}", "expected a list"),
    ],
)
def test_invalid_case_file_is_reported_with_its_line(run: Run, case: str, said: str) -> None:
    result = run(f"  - {case}\n")
    assert result.exit_code == 2
    assert said.removeprefix("line 3: ") in result.stderr
    assert "web.test.yaml:3: cases[0]" in result.stderr


def test_all_files_are_read_before_any_case_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(FLOW.replace("severity <=", "sverity <="))
    result = run("  - {name: a, input: [], count: 0}\n", str(tmp_path / "nothing"), str(tmp_path))
    assert result.exit_code == 2
    for said in (
        'web.yaml:7: filters[1].where: there is no column "sverity"',
        "nothing: cannot be",
    ):
        assert said in result.stderr
    head = "flow: web.yaml\nsource: 2"
    (tmp_path / "web.yaml").write_text(FLOW)
    result = run("  - {name: a, input: [], count: 0}\n", head=head)
    assert "source: flow web has 2 sources, numbered from 0" in result.stderr


def test_the_example_passes() -> None:
    """Without Spark: it would take longer than all else here."""
    result = CliRunner().invoke(tree, ["flow", "test", str(CONF / "web-logs.test.yaml")])
    assert (result.exit_code, result.stdout) == (0, "4 cases, none failed\n")
    assert result.stderr == ""


def test_docs_list_every_option() -> None:
    docs = (CONF.parents[1] / "docs" / "reference" / "test-cases.md").read_text()
    for cls in (CaseFile, Case, GivenEvent):
        for option in dataclasses.fields(cls):
            assert f"| `{option.name}` |" in docs, (cls, option.name)


@pytest.mark.parametrize(
    ("text", "value", "kind", "same"),
    [
        ("4", 4, pa.int32(), True),
        ("4.0", 4, pa.int32(), False),
        ("four", 4, pa.int32(), False),
        ("0.5", 0.5, pa.float64(), True),
        (".nan", float("nan"), pa.float64(), False),
        ("nan", float("nan"), pa.float64(), True),
        ("1.50", Decimal("1.5"), pa.decimal128(5, 2), True),
        ("true", True, pa.bool_(), True),
        ("1", True, pa.bool_(), False),
        ("1", "1", pa.string(), True),
        ("~", None, pa.string(), True),
        ("''", None, pa.string(), False),
        ("~", "", pa.string(), False),
        ("2026-01-01", date(2026, 1, 1), pa.date32(), True),
        ("2026-01-01T01:00:00+01:00", datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us"), True),
        ("tomorrow", datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us"), False),
        ("a", b"a", pa.binary(), True),
        ("{a: 1}", [("a", 1), ("b", 2)], pa.map_(pa.string(), pa.int32()), True),
        ("{c: null}", [("a", 1)], pa.map_(pa.string(), pa.int32()), True),
        ("{c: 1}", [("a", 1)], pa.map_(pa.string(), pa.int32()), False),
        ("[1, 2]", [1, 2], pa.list_(pa.int32()), True),
        ("[1]", [1, 2], pa.list_(pa.int32()), False),
        (
            "{a: [1]}",
            {"a": [1], "b": 2},
            pa.struct({"a": pa.list_(pa.int8()), "b": pa.int8()}),
            True,
        ),
        ("{c: 1}", {"a": 1}, pa.struct({"a": pa.int8()}), False),
        ("a", {"a": 1}, pa.struct({"a": pa.int8()}), False),
    ],
)
def test_expected_text_is_compared_by_the_type_of_its_column(
    text: str, value: Any, kind: pa.DataType, same: bool
) -> None:
    assert matches(document.compose(text), value, kind) is same


def test_matching_pairs_are_found_for_any_order_of_expectations() -> None:
    """The first expectation fits both events, the second one only the one that the first takes."""
    schema = pa.schema({"a": pa.int32(), "b": pa.int32()})
    events = pa.RecordBatch.from_pylist([{"a": 1, "b": 1}, {"a": 1, "b": 2}], schema)
    expected = [document.compose("{a: 1}"), document.compose("{b: 1}")]
    assert compare(expected, [events], schema) == []
    assert len(compare([*expected, expected[1]], [events], schema)) == 1


@pytest.mark.slow
def test_lines_of_a_case_are_joined_as_in_the_flow(run: Run, tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(
        "flow: app\nsources: [tail: {paths: [/a]}]\nmultiline: {preset: python}\n"
        "filters: [where: \"attrs['lines'] > 1\"]\nsinks: [noop]\n"
    )
    cases = """\
  - name: a trace
    input: ["one", "two", "Traceback (most recent call last):", "  File", "KeyError: 7", "three"]
    expect: [{body: "two\\nTraceback (most recent call last):\\n  File\\nKeyError: 7"}]
"""
    result = run(cases, head="flow: app.yaml")
    assert result.exit_code == 0, result.output
