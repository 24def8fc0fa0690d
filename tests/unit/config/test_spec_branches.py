"""Flows with branches: parsing, refusals and guarantees."""

from __future__ import annotations

import pytest

from flumeng.config import SpecError, check_flow, parse_flow
from flumeng.config.flow_outline import Outline, outline
from flumeng.config.guarantees import promise

HEAD = (
    "flow: web\nsources: [syslog: {listen: '0.0.0.0:5514'}]\nfilters: [parse: {format: syslog}]\n"
)
TREE = """
sinks: [console]
branches:
  - name: errors
    when: "severity <= 3"
    filters: [select: [ts, body, app]]
    sinks: [files: {path: /data/errors}, noop]
  - name: rest
    otherwise: true
    branches:
      - {name: auth, when: "facility = 4", sinks: [files: {path: "/data/auth/{app}"}]}
      - {name: all, sinks: [files: {path: /data/all}]}
dead_letters: {files: {path: /data/dead, format: json}}
"""


def problems(text: str) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        check_flow(HEAD + text)
    return [(problem.path, problem.message) for problem in caught.value.problems]


def test_sinks_are_numbered_depth_first_and_found_by_branch_names() -> None:
    spec = check_flow(HEAD + TREE)
    assert [(leaf.path, leaf.place) for leaf in spec.leaves] == [
        ("sinks[0].console",) * 2,
        ("branches[0].sinks[0].files", "branches[errors].sinks[0].files"),
        ("branches[0].sinks[1].noop", "branches[errors].sinks[1].noop"),
        ("branches[1].branches[0].sinks[0].files", "branches[rest].branches[auth].sinks[0].files"),
        ("branches[1].branches[1].sinks[0].files", "branches[rest].branches[all].sinks[0].files"),
    ]
    names = [sink.name for sink in spec.all_sinks]
    assert names == ["console", "files", "noop", "files", "files", "files"]
    assert spec.all_sinks[-1] is spec.dead_letters
    assert [part.name for part in spec.all_filters] == ["parse", "select"]
    assert [one.name for one in spec.segments] == ["", "errors", "rest", "rest/auth", "rest/all"]
    assert Outline.of(spec) == outline(HEAD + TREE)
    assert outline(HEAD + TREE).sinks == ("console", "files", "noop", "files", "files")
    assert spec.batch_seconds == 60


@pytest.mark.parametrize(
    ("branches", "expected"),
    [
        ("[{name: a}]", ("branches[0]", 'missing "sinks"')),
        ("[{sinks: [noop]}]", ("branches[0]", 'missing "name"')),
        ("[]", ("branches", "at least one")),
        ("[{name: A b, sinks: [noop]}]", ("branches[0].name", "small letters")),
        (
            "[{name: a, when: 'true', sinks: [noop]}, {name: a, sinks: [noop]}]",
            ("branches[1].name", "there is a branch a already"),
        ),
        (
            "[{name: a, otherwise: true, sinks: [noop]}, {name: b, when: 'true', sinks: [noop]}]",
            ("branches[0].otherwise", "only the last branch"),
        ),
        (
            "[{name: a, otherwise: true, when: 'true', sinks: [noop]}]",
            ("branches[0].otherwise", "leave `when` out"),
        ),
        (
            "[{name: a, sinks: [noop]}, {name: b, otherwise: true, sinks: [noop]}]",
            ("branches[1].otherwise", "a takes all events"),
        ),
        ("[{name: a, sinks: [nop]}]", ("branches[0].sinks[0]", 'did you mean "noop"')),
        ("[{name: a, wen: 'true', sinks: [noop]}]", ("branches[0].wen", 'did you mean "when"')),
        (
            "[{name: a, when: 'severty = 1', sinks: [noop]}]",
            ("branches[0].when", 'there is no column "severty"'),
        ),
        (
            "[{name: a, filters: [select: [ts]], sinks: [files: {path: '/x/{app}'}]}]",
            ("branches[0].sinks[0].files", "the path needs the column app"),
        ),
        (
            "[{name: a, branches: [{name: b, filters: [where: 'no = 1'], sinks: [noop]}]}]",
            ("branches[0].branches[0].filters[0].where", 'there is no column "no"'),
        ),
    ],
)
def test_invalid_branches_are_reported_with_their_place(
    branches: str, expected: tuple[str, str]
) -> None:
    found = problems(f"branches: {branches}\n")
    assert found[0][0] == expected[0]
    assert expected[1] in found[0][1]


def test_branch_has_the_columns_before_it_and_none_of_its_neighbours() -> None:
    text = """
branches:
  - {name: a, filters: [select: [ts, "1 AS n"]], sinks: [noop]}
  - {name: b, when: "n = 1", sinks: [files: {path: "/x/{severity}"}]}
"""
    assert [path for path, _ in problems(text)] == ["branches[1].when"]


def test_two_branches_cannot_write_one_directory_and_all_keep_the_guarantees() -> None:
    twice = """
branches:
  - {name: a, when: "severity = 1", sinks: [files: {path: /data}]}
  - {name: b, otherwise: true, sinks: [files: {path: /data}]}
"""
    found = problems(twice)
    assert found == [
        ("branches[1].sinks[0].files.path", "/data is already used by branches[0].sinks[0].files")
    ]
    (weak,) = problems("delivery: exactly-once\nbranches: [{name: a, sinks: [noop]}]\n")
    assert weak[0] == "branches[0].sinks[0].noop"


def test_lookup_table_of_one_branch_does_not_limit_another() -> None:
    lookup = "{lookup: {on: [app], table: {csv: /x.csv, schema: 'app STRING, team STRING'}}}"
    http = "{http: {url: 'https://x.example/', idempotent: true}}"
    text = f"""
delivery: exactly-once
branches:
  - {{name: a, when: "severity = 1", filters: [{lookup}], sinks: [files: {{path: /data}}]}}
  - {{name: b, otherwise: true, sinks: [{http}]}}
"""
    check_flow(HEAD + text)
    (found,) = problems(text.replace("sinks: [files: {path: /data}]", f"sinks: [{http}]"))
    assert found[0] == "branches[0].sinks[0].http"
    (found,) = problems(f"{text}dead_letters: {http}\n")
    assert found[0] == "dead_letters.http"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "branches: [{name: a, when: 'severity = 1', sinks: [noop]}]",
            "An event that none of the branches takes (a) is dropped",
        ),
        (
            "sinks: [console]\nbranches: [{name: a, when: 'severity = 1', sinks: [noop]}]",
            "An event that none of the branches takes (a) goes into console only.",
        ),
        (
            "branches: [{name: a, branches: [{name: b, when: 'severity = 1', sinks: [noop]}]}]",
            "An event that none of the branches of a takes (b) is dropped",
        ),
        (TREE, None),
    ],
)
def test_guarantees_mention_events_that_no_branch_takes(text: str, said: str | None) -> None:
    found = [sentence for sentence in promise(parse_flow(HEAD + text)) if "none of" in sentence]
    assert [sentence[: len(said or "")] for sentence in found] == ([said] if said else [])
