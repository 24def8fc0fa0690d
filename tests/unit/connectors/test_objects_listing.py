"""Listings of the objects of a path, in trees of files and of any store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from flumeng.connectors.objects import listing as module
from flumeng.connectors.objects.file_trees import ArrowTree
from flumeng.connectors.objects.globs import Glob
from flumeng.connectors.objects.listing import Lister, Listing
from flumeng.connectors.objects.pages import PAGE, Listed, Page, Request
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.file_store import open_store
from flumeng.platform.remote_store import RemoteFileStore
from tests.testkit.waiting import happens


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def found(root: Path, glob: str, after: str = "") -> list[str]:
    behind = f"{root}/{after}" if after else ""
    return names(Lister(f"{root}/{glob}").listing(behind), root)


def names(listing: Listing, root: Path) -> list[str]:
    return [os.path.relpath(one.name, root) for page in listing for one in page]


class StubTree:
    """An endless tree of directories of 1,000 directories and objects each."""

    lasting = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.waiting = 0
        self.most_at_once = 0
        self.answers = threading.Event()
        self.answers.set()
        self.hangs = False
        self._lock = threading.Lock()

    def page(self, request: Request) -> Page:
        with self._lock:
            self.asked.append(request.scope.directory)
            self.waiting += 1
            self.most_at_once = max(self.most_at_once, self.waiting)
        time.sleep(0.001)
        self.answers.wait()
        page = Page()
        for number in range(PAGE):
            below = request.scope.below(f"{number:04}")
            if below is not None:
                page.entries.append(request.into(below))
            if request.scope.takes(f"{number:04}.gz"):
                path = f"{request.scope.directory}/{number:04}.gz"
                page.entries.append(Listed(path, 1, 1))
        with self._lock:
            self.waiting -= 1
        return page


def lister(tree: StubTree, glob: str, silent_seconds: float = 60) -> Lister:
    made = Lister(glob, silent_seconds=silent_seconds)
    made._tree = tree
    return made


def test_object_is_listed_with_its_size_and_time(tmp_path: Path) -> None:
    make(tmp_path, "a b.gz")
    os.utime(tmp_path / "a b.gz", ns=(1, 1_700_000_000_123_456_789))
    (page,) = Lister(f"{tmp_path}/*").listing()
    assert page == [Listed(f"{tmp_path}/a b.gz", 6, 1_700_000_000_123_456)]
    (page,) = Lister(f"file://{tmp_path}/*").listing()
    assert page[0].location == f"file://{tmp_path}/a b.gz"
    assert open_store(page[0].location)[0].exists(open_store(page[0].location)[1])


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*", ["x.gz", "y.gz"]),
        ("?.gz", ["x.gz", "y.gz"]),
        ("[!x].gz", ["y.gz"]),
        ("x.gz", ["x.gz"]),
        ("a/", ["a/1.gz"]),
        ("*/*", ["a/1.gz", "b/1.gz", "p_=1/1.gz"]),
        ("*/d/*", ["a/d/1.gz"]),
        ("a/**", ["a/1.gz", "a/d/1.gz", "a/d/d/1.gz"]),
        ("**/d/*", ["a/d/1.gz", "a/d/d/1.gz"]),
        ("**/d/**/1.gz", ["a/d/1.gz", "a/d/d/1.gz"]),
        ("**/x.gz", ["x.gz"]),
        ("_*/*", ["_temporary/1.gz"]),
        (".*", [".hidden"]),
        ("_temporary/*", ["_temporary/1.gz"]),
        ("[_x]*", ["x.gz"]),
        ("none/*/*", []),
    ],
)
def test_glob_matches_the_documented_files(tmp_path: Path, glob: str, expected: list[str]) -> None:
    make(
        tmp_path,
        *("x.gz", "y.gz", "a/1.gz", "b/1.gz", "a/d/1.gz", "a/d/d/1.gz", "p_=1/1.gz"),
        *(".hidden", "_SUCCESS", "z._COPYING_", "_temporary/1.gz", "a/_flumeng/1.gz", "a/.x/1"),
        "a/c._COPYING_/1.gz",
    )
    (tmp_path / "none").mkdir()
    assert found(tmp_path, glob) == expected


_NAME = st.text("ab-.0", min_size=1, max_size=3).filter(lambda name: name[0] not in ".")
_PART = st.sampled_from(["*", "**", "a*", "?", "[ab]*", "a", "*-*"])


def means(path: list[str], parts: list[str]) -> bool:
    if not parts:
        return not path
    if parts[0] == "**":
        return any(means(path[skip:], parts[1:]) for skip in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], parts[0]) and means(path[1:], parts[1:])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.sets(st.lists(_NAME, min_size=1, max_size=4).map("/".join), max_size=12),
    st.lists(_PART, min_size=1, max_size=4),
    st.data(),
)
def test_listing_is_sorted_and_starts_behind_any_name(
    tmp_path_factory: pytest.TempPathFactory, paths: set[str], parts: list[str], data: st.DataObject
) -> None:
    paths = {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}
    root = tmp_path_factory.mktemp("tree")
    make(root, *paths)
    if parts[-1] == "**":
        parts = [*parts, "*"]
    expected = sorted(path for path in paths if means(path.split("/"), parts))
    glob = "/".join(parts)
    if Path(f"{root}/{Glob(glob).root}").is_dir():
        assert found(root, glob) == expected
        after = data.draw(st.sampled_from(sorted(paths)) if paths else st.just("a"))
        assert found(root, glob, after) == [path for path in expected if path > after]
        tree = ArrowTree(RemoteFileStore(fs.LocalFileSystem()), str(root), f"{root}/", "")
        arrow = Lister(f"{root}/{glob}")
        arrow._tree, arrow._head, arrow._glob = tree, f"{root}/", Glob(glob)
        assert names(arrow.listing(f"{root}/{after}"), root) == [
            path for path in expected if path > after
        ]


def test_unusual_names_are_listed_and_undecodable_ones_counted(tmp_path: Path) -> None:
    strange = ["a\nb", "50%", "q?", "#h", " ", "ü", "x" * 250, "a&b<c>\"'\\"]
    make(tmp_path, *strange)
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff\xfe")).write_text("x")
    listing = Lister(f"{tmp_path}/*").listing()
    assert names(listing, tmp_path) == sorted(strange)
    assert (listing.unnamed, listing.unnamed_example) == (1, ascii(f"{tmp_path}/\udcff\udcfe"))


def test_special_files_are_no_objects(tmp_path: Path) -> None:
    make(tmp_path, "real")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dead").symlink_to(tmp_path / "nothing")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert found(tmp_path, "*") == ["link", "real"]


def test_links_that_loop_end(tmp_path: Path) -> None:
    make(tmp_path, "a/x", "b/x")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b" / "a").symlink_to(tmp_path / "a")
    assert found(tmp_path, "**/x") == ["a/x", "b/x"]
    assert found(tmp_path, "*/*/x") == ["b/a/x"]


@pytest.mark.slow
def test_vanished_directory_is_empty(tmp_path: Path) -> None:
    make(tmp_path, *(f"{number:02}/{n:04}" for number in range(40) for n in range(60)))
    got: list[Listed] = []
    for page in Lister(f"{tmp_path}/*/*").listing():
        if not got:
            for path in (tmp_path / "39").iterdir():
                path.unlink()
            (tmp_path / "39").rmdir()
        got += page
    assert len(got) == 39 * 60


def test_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path}/no/such: no such directory: create it"):
        found(tmp_path, "no/such/*.gz")


def test_unreadable_directory_is_reported_at_the_end() -> None:
    class Denying(StubTree):
        def page(self, request: Request) -> Page:
            if request.scope.directory.endswith(("/0001", "/0003")):
                raise UserError(f"{request.scope.directory}: denied")
            if request.scope.directory == "/in":
                below = [request.scope.below(f"{number:04}") for number in range(5)]
                return Page([request.into(one) for one in below if one is not None])
            return super().page(request)

    for strict, told, pages in (
        (False, "/in/0001: denied, and 1 more", 3),
        (True, "/in/0001: denied$", 1),
    ):
        got: list[Listed] = []
        with pytest.raises(UserError, match=told):
            for page in lister(Denying(), "/in/*/*.gz").listing(strict=strict):
                got += page
        assert len(got) == pages * PAGE


@pytest.mark.slow
def test_endless_listing_requests_only_the_next_pages() -> None:
    tree = StubTree()
    pages = iter(lister(tree, "/in/*/*/*/*.gz").listing())
    for _ in range(5):
        assert len(next(pages)) == PAGE
    assert len(tree.asked) < 5 + 4 * module.ASK_AT_ONCE
    assert 1 < tree.most_at_once <= module.ASK_AT_ONCE
    assert close(pages)


def close(pages: Iterator[list[Listed]]) -> bool:
    pages.close()  # type: ignore[attr-defined]
    return happens(
        lambda: all(thread.name != "listing" for thread in threading.enumerate()), seconds=10
    )


@pytest.mark.slow
def test_hanging_store_costs_a_timeout_and_a_bounded_number_of_threads() -> None:
    tree = StubTree()
    tree.answers.clear()
    hanging = lister(tree, "/in/*.gz", silent_seconds=0.05)
    for _ in range(module.ASK_AT_ONCE + 5):
        with pytest.raises(UnavailableError, match=r"/in/\*.gz: no answer in 0.05 s"):
            list(hanging.listing())
    assert len(tree.asked) == module.ASK_AT_ONCE
    tree.answers.set()
    assert close(iter(hanging.listing()))
    assert [len(page) for page in hanging.listing()] == [PAGE]
