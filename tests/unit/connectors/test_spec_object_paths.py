"""Which globs a source ``objects`` may have, and which of them mean the same objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import parse_flow
from flumeng.connectors.objects.globs import Glob, check_objects, overlap
from flumeng.platform.errors import UserError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/in/*.log", "/in/*.log", True),
        ("/in/*.log", "/in/a*", True),
        ("/in/*.log", "/in/*.gz", False),
        ("/in/a?c", "/in/*bc", True),
        ("/in/[ab]*", "/in/[b-d]x", True),
        ("/in/[ab]*", "/in/[!ab]*", False),
        ("/in/*", "/in/*/*", False),
        ("/in/**", "/in/a/b/c", True),
        ("/in/**/x", "/in/**/y/*", True),
        ("/in/**/x.log", "/in/a/*.gz", False),
        ("/in/**", "/out/**", False),
        ("s3a://b/x/*?endpoint_override=http://h:1", "s3a://b/x/y", True),
        ("s3a://b/x/*", "s3a://c/x/*", False),
        ("file:///in/*", "/in/a", True),
        (f"/in/{'x' * 2000}*", f"/in/{'x' * 2000}y", True),
        (f"/in/{'x/' * 2000}*", f"/in/{'x/' * 2000}y", True),
        (f"/in/{'*a' * 100}", f"/in/{'a*' * 100}b", False),
        (f"/in/{'**/a/' * 100}c", f"/in/{'a/**/' * 100}b", False),
    ],
)
def test_overlap_of_two_globs_is_found(one: str, other: str, same: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is same


NAMES = st.text("ab", min_size=1, max_size=2)
GLOBS = st.lists(
    st.one_of(st.just("**"), st.text("ab*?", min_size=1, max_size=3)), min_size=1, max_size=3
).map(lambda parts: "/in/" + "/".join(parts))


@given(GLOBS, GLOBS, st.lists(NAMES, min_size=1, max_size=3))
def test_globs_that_match_a_common_object_overlap(one: str, other: str, names: list[str]) -> None:
    if all(means(glob, names) for glob in (one, other)):
        assert overlap(one, other)


def means(glob: str, names: list[str]) -> bool:
    root = Glob(glob).root.split("/")
    whole = ["", "in", *names]
    if whole[: len(root)] != root or len(whole) == len(root):
        return False
    scope, left = Glob(glob).scope, whole[len(root) :]
    while len(left) > 1:
        below = scope.below(left.pop(0))
        if below is None:
            return False
        skipped = below.directory.split("/")[len(scope.directory.split("/")) + 1 :]
        if skipped != left[: len(skipped)] or len(skipped) >= len(left):
            return False
        scope, left = below, left[len(skipped) :]
    return scope.takes(left[0])


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("s3a://b/log-?.gz", "question mark"),
        ("s3a://b/a?b/*", "question mark"),
        ("/in/{a,b}/*", "braces"),
        ("/in/dt=%Y-%m-%d/*", "%Y is not replaced"),
        ("s3a://logs-*/x", "one bucket"),
        ("in/*", "absolute"),
        ("/in/../x", r"\.\."),
    ],
)
def test_invalid_glob_is_refused(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_objects(path)


@pytest.mark.parametrize(
    "path", ["/in/100%/*", "/in/a?.log", "s3a://b/x/*?endpoint_override=http://h:1&region=eu"]
)
def test_valid_glob_is_accepted(path: str) -> None:
    check_objects(path)


@pytest.mark.parametrize("order", ["name", "modified"])
def test_overlapping_paths_are_refused_in_ordered_sources(order: str) -> None:
    text = "flow: x\nsources: [objects: {{paths: [/in/*.log, /in/a*], order: {}}}]\nsinks: [noop]\n"
    with pytest.raises(UserError, match="may match the same object"):
        parse_flow(text.format(order))
    parse_flow(text.format("any"))
