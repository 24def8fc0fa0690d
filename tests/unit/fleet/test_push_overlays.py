"""Patches are laid over flows as Kubernetes lays them over its objects."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from flumeng.config import document
from flumeng.fleet.inventory import overlays, variables
from flumeng.fleet.inventory.rendering import written

BASE = """\
flow: web
sources:
  - syslog: {listen: "0.0.0.0:1"}
  - tail: {paths: [/a, /b]}
place: {ingest: {labels: {role: web, tier: one}}, collect: {tasks: 4}}
sinks:
  - files: {path: /lake, format: json}
  - console
"""


def tree(text: str, file: str = "f.yaml") -> yaml.Node:
    root = document.compose(text, file=file)
    assert not list(overlays.check(root))
    return root


def laid(*texts: str) -> tuple[Any, list[str]]:
    """The merged value and the problems."""
    problems: overlays.Problems = []
    result = overlays.lay([tree(text) for text in texts], problems)
    value = None if result is None else yaml.safe_load(written(result))
    return value, [problem.message for problem in problems]


def over_base(patch: str) -> Any:
    value, problems = laid(BASE, patch)
    assert not problems
    return value


BEFORE = yaml.safe_load(BASE)


@pytest.mark.parametrize(
    ("patch", "part", "expected"),
    [
        ("place: {collect: {tasks: 8}}", "place", {**BEFORE["place"], "collect": {"tasks": 8}}),
        ("place: {collect: null}", "place", {"ingest": BEFORE["place"]["ingest"]}),
        ("place: {collect:}", "place", {"ingest": BEFORE["place"]["ingest"]}),
        ("place: {collect: {$patch: delete}}", "place", {"ingest": BEFORE["place"]["ingest"]}),
        (
            "place: {ingest: {labels: {$patch: replace, role: x}}, collect: null}",
            "place",
            {"ingest": {"labels": {"role": "x"}}},
        ),
        ("place: 3", "place", 3),
        ("place: [3]", "place", [3]),
        ("delivery: exactly-once", "delivery", "exactly-once"),
        ("batch: {events: 5, seconds: null}", "batch", {"events": 5}),
        ("sinks: null", "sinks", None),
    ],
)
def test_mappings_merge_and_scalars_replace(patch: str, part: str, expected: Any) -> None:
    wanted = {**BEFORE, part: expected}
    if expected is None:
        del wanted[part]
    assert over_base(f"flow: web\n{patch}\n") == wanted


SYSLOG, TAIL = BEFORE["sources"]
FILES = {"path": "/lake", "format": "json"}


@pytest.mark.parametrize(
    ("patch", "part", "expected"),
    [
        ("[files: {format: text}]", "sinks", [{"files": {**FILES, "format": "text"}}, "console"]),
        ("[files: {format: null}]", "sinks", [{"files": {"path": "/lake"}}, "console"]),
        ("[files: {$patch: delete}]", "sinks", ["console"]),
        ("[console: {$patch: delete}]", "sinks", [{"files": FILES}]),
        ("[console, files]", "sinks", [{"files": FILES}, "console"]),
        ("[console:, files:]", "sinks", [{"files": FILES}, "console"]),
        ("[console: {rows: 1}]", "sinks", [{"files": FILES}, {"console": {"rows": 1}}]),
        ("[noop]", "sinks", [{"files": FILES}, "console", "noop"]),
        ("[noop:]", "sinks", [{"files": FILES}, "console", {"noop": None}]),
        ("[noop: {$patch: delete}]", "sinks", [{"files": FILES}, "console"]),
        ("[{$patch: replace}, noop, noop]", "sinks", ["noop", "noop"]),
        ("[{$patch: replace}]", "sinks", []),
        ("[files: {$patch: replace, path: /x}]", "sinks", [{"files": {"path": "/x"}}, "console"]),
        ("[files: /x]", "sinks", [{"files": "/x"}, "console"]),
        ("[]", "sinks", BEFORE["sinks"]),
        ("[tail: {paths: [/c]}]", "sources", [SYSLOG, {"tail": {"paths": ["/c"]}}]),
        ("[noop, {a: 1, b: 2}]", "sources", ["noop", {"a": 1, "b": 2}]),
        ("[{where: x}, {where: y}]", "filters", [{"where": "x"}, {"where": "y"}]),
    ],
)
def test_components_merge_by_name(patch: str, part: str, expected: Any) -> None:
    assert over_base(f"flow: web\n{part}: {patch}\n") == {**BEFORE, part: expected}


def test_ambiguous_component_name_is_refused() -> None:
    twice = "filters: [{where: x}, {parse: {format: json}}, {where: y}]"
    once = "filters: [{where: x}]"
    for below, patch in [(twice, once), (once, twice)]:
        _, problems = laid(below, patch)
        assert problems
        assert set(problems) == {
            'there are several "where" and the patch fits each of them: '
            'give the whole list after "- $patch: replace"'
        }
    assert laid(twice, "filters: [{$patch: replace}, {where: z}]") == (
        {"filters": [{"where": "z"}]},
        [],
    )


def test_later_patches_lie_over_earlier_ones() -> None:
    patches = ["a: {x: 1, y: 1}", "a: {x: 2}\nb: 1", "b: null\nc: {$patch: replace}"]
    assert laid(*patches) == ({"a": {"x": 2, "y": 1}, "c": {}}, [])
    assert laid("a: 1", "$patch: replace\nb: 2") == ({"b": 2}, [])
    assert laid("a: 1", "$patch: delete") == (None, [])
    assert laid("a: 1", "$patch: delete", "b: null\nc: 3") == ({"b": None, "c": 3}, [])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: {$patch: nonsense}", 'a: expected "$patch: replace" or "$patch: delete"'),
        ("a: {$patch: {x: 1}}", 'a: expected "$patch: replace" or "$patch: delete"'),
        ("a: {$patch: null}", 'a: expected "$patch: replace" or "$patch: delete"'),
        ("a: [1, {$patch: replace}]", 'a[1]: a list takes only "- $patch: replace"'),
        ("a: [{$patch: delete}]", 'a[0]: a list takes only "- $patch: replace"'),
        ("a: [{$patch: replace, b: 1}]", 'a[0]: a list takes only "- $patch: replace"'),
        ("a: {b: 1, b: 2}", "a.b: given twice; the first is in line 1"),
        ("? [1]\n: 2", "expected a name, found a list"),
        ("a: {? {b: 1} : 2}", "a: expected a name, found a mapping"),
    ],
)
def test_invalid_overlay_is_reported(text: str, told: str) -> None:
    (problem,) = overlays.check(document.compose(text, file="f.yaml"))
    assert f"{problem.path}: {problem.message}".lstrip(": ").startswith(told)
    assert (problem.file, problem.line) == ("f.yaml", 1)


def test_names_with_special_meanings_elsewhere_are_plain_names() -> None:
    odd = {"__proto__": {"__class__": 1}, "<<": "x", "constructor": 2, "None": 3, "1": 4}
    value, _ = laid(yaml.safe_dump(odd), "__proto__: {__class__: 5}\n'<<': null\n")
    assert value == {"__proto__": {"__class__": 5}, "constructor": 2, "None": 3, "1": 4}


def test_every_node_has_its_origin() -> None:
    problems: overlays.Problems = []
    base = tree("flow: web\nplace:\n  collect: {tasks: 4}\nlag: {seconds: 3}\n", "base")
    patch = tree("# eu\nflow: web\nplace:\n  collect:\n    per_node: 1\nlag: {seconds:}\n", "eu")
    result = document.items(overlays.lay([base, patch], problems))
    collect = document.items(document.items(result["place"])["collect"])
    assert overlays.origin(result["flow"]) == ("base", 1), "the patch only repeats it"
    assert overlays.origin(collect["tasks"]) == ("base", 3)
    assert overlays.origin(collect["per_node"]) == ("eu", 5)
    assert overlays.origin(result["lag"]) == ("eu", 6), "the patch has emptied it"


def test_one_line_mapping_stays_on_one_line_only_with_one_origin() -> None:
    problems: overlays.Problems = []
    base = tree("a: {x: {y: 1}}\nb: {x: 1}\nc: {x: 1,\n  y: 2}\n", "base")
    patch = tree("a: {x: {z: 1}}\n", "eu")
    result = overlays.lay([base, patch], problems)
    assert result is not None
    assert written(result) == "a:\n  x:\n    y: 1\n    z: 1\nb: {x: 1}\nc:\n  x: 1\n  y: 2\n"


VALUES = {"lake": "/lake", "yes": "true", "odd": "a: [b\n# c"}


@pytest.mark.parametrize(
    ("text", "expected", "wrong"),
    [
        ("${lake}/web", "/lake/web", []),
        ("${lake}${lake}", "/lake/lake", []),
        ("$${lake} $$${lake}", "${lake} $${lake}", []),
        ("${secret:lake} ${secret:", "${secret:lake} ${secret:", []),
        ("$lake $ {lake} $(lake)", "$lake $ {lake} $(lake)", []),
        ("${laek}", "${laek}", ['unknown variable "laek"; did you mean "lake"?']),
        ("${zone}", "${zone}", ["the site has no zone: give it one in sites.yaml"]),
        ("${", "${", [variables.FORM]),
        ("${lake", "${lake", [variables.FORM]),
        ("${}", "${}", [variables.FORM]),
        ("${Lake} ${lake}", "${Lake} /lake", [variables.FORM]),
        ("${${lake}}", "${${lake}}", [variables.FORM]),
    ],
)
def test_variables_in_a_text(text: str, expected: str, wrong: list[str]) -> None:
    assert variables.fill(text, VALUES) == (expected, wrong)


def test_variables_fill_values_only_and_are_never_read_as_yaml() -> None:
    problems: overlays.Problems = []
    root = tree('"${lake}": ${lake}\nswitch: ${yes}\nlist: ["${odd}", "x${yes}"]\n')
    assert variables.usage(root) == variables.Usage(("lake", "odd", "yes"), changes=True)
    result = written(variables.filled(root, VALUES, problems))
    assert yaml.safe_load(result) == {
        "${lake}": "/lake",
        "switch": "true",
        "list": [VALUES["odd"], "xtrue"],
    }
    assert not problems
    assert not variables.usage(tree("a: ${secret:b}\n${c}: d")).changes
