"""Globs of files as flows give them."""

from __future__ import annotations

import pytest

from flumeng.config import parse_flow
from flumeng.connectors.tail.file_globs import expand, matches
from flumeng.platform.errors import UserError


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("/a/*.log", ["/a/*.log"]),
        ("/{a,b}/{c,}x", ["/a/cx", "/a/x", "/b/cx", "/b/x"]),
        ("/a/b{c,d{e,f}}", ["/a/bc", "/a/bde", "/a/bdf"]),
        ("/a/{b}", ["/a/{b}"]),
        ("/a/{b/{c,d}", ["/a/{b/c", "/a/{b/d"]),
        ("/a/[{]b,c[}]", ["/a/[{]b,c[}]"]),
        ("/a/[!{,}]b", ["/a/[!{,}]b"]),
        ("/a/{b,b}", ["/a/b"]),
    ],
)
def test_braces_expand_to_each_alternative(pattern: str, expected: list[str]) -> None:
    assert list(expand(pattern)) == expected


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("/a/b.log", "/a/*.log", True),
        ("/a/x/b.log", "/a/*.log", False),
        ("/a/x/y/b.log", "/a/**/*.log", True),
        ("/a/b.log", "/a/**/*.log", True),
        ("/a/b.log", "/a/[bc].l?g", True),
        ("/c/b.log", "/a/**", False),
    ],
)
def test_recorded_path_matches_as_glob_does(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, pattern) is expected


def flow(options: str) -> str:
    return f"flow: f\nsources:\n  - tail: {{{options}}}\nsinks: [noop]\n"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("paths: [/var/log/]", "not of a folder"),
        ("paths: ['/var/log/{a,b/}']", "not of a folder"),
        ("paths: ['/var/log/{a,b']", "expected a closing brace for '{a,b'"),
        ("paths: ['/{a,b}" + "{c,d}" * 12 + "']", "expected at most 1000 alternatives"),
        ("paths: ['/var/log/*.gz'], exclude: ['/var/log/*']", "exclude removes all files of"),
        ("paths: ['/x'], exclude: ['*.gz']", "expected an absolute path"),
        ("paths: ['/x'], encoding: cp037", "a line ends with a newline"),
        ("paths: ['/x'], encoding: klingon", "expected an encoding such as utf-8"),
    ],
)
def test_options_that_can_match_nothing_are_refused(options: str, problem: str) -> None:
    with pytest.raises(UserError, match="tail") as refused:
        parse_flow(flow(options))
    assert problem in str(refused.value)


def test_two_sources_must_not_name_one_file_in_braces_either() -> None:
    text = flow("paths: ['/var/log/{a,b}']").replace(
        "sinks", "  - tail: {paths: [/var/log/b]}\nsinks"
    )
    with pytest.raises(UserError, match="/var/log/b is already used"):
        parse_flow(text)


def test_policy_of_the_node_gets_each_alternative() -> None:
    (source,) = parse_flow(flow("paths: ['/{etc,var}/log/*']")).sources
    assert list(source.options.needs()) == [("path", "/etc/log/*"), ("path", "/var/log/*")]
