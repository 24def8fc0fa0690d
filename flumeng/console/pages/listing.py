"""The parts of all lists: pages of rows, a search and an order, by the parameters of the URL.

Rows are chosen here, so that a page stays small with any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

from flumeng.console.pictures import Picture
from flumeng.control.queries.causes import Cause, of_unreadable
from flumeng.control.queries.read_cache import ReadCache
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import nearest
from zkschema.table import Row

T = TypeVar("T")

PAGE_ROWS = 100
MOST_CHARACTERS = 200
"""The longest parameter."""
UNREAD = " cannot be read"
NEAR = 2
"""Pages that are linked on both sides of the shown one."""

Keys = Mapping[str, Callable[[T], Any]]
"""The orders of a list: the name of each, and what rows are sorted by. The first is the default."""


@dataclass(frozen=True)
class Listing(Generic[T]):
    """The ``rows`` of page ``number`` of ``pages``, from 1. ``found``: how many match; ``total``:
    how many there are. ``given``: the parameters of the URL. ``orders``: names of orders."""

    rows: Sequence[T]
    found: int
    total: int
    number: int
    pages: int
    given: Mapping[str, str]
    orders: Sequence[str] = ()

    @property
    def asked(self) -> str:
        return self.given.get("q", "")

    @property
    def sort(self) -> str:
        return self.given.get("sort") or (self.orders[0] if self.orders else "")

    def href(self, **changes: object) -> str:
        """Return the URL of this list with some parameters changed."""
        kept = {key: value for key, value in self.given.items() if key != "page"}
        changed = {key: str(value) for key, value in changes.items()}
        return f"?{urlencode({k: v for k, v in (kept | changed).items() if v})}"

    @property
    def near(self) -> list[int | None]:
        """Return the pages to link: the first, those around this one, and the last; None: a gap."""
        some = {1, self.pages, *range(self.number - NEAR, self.number + NEAR + 1)}
        shown: list[int | None] = []
        for number in sorted(number for number in some if 1 <= number <= self.pages):
            if shown and shown[-1] != number - 1:
                shown.append(None)
            shown.append(number)
        return shown


def parameters(request: Request, *names: str) -> dict[str, str]:
    """Return these parameters of the URL; empty ones are left out. Raises UserError for one that is
    too long."""
    given = {name: request.query_params.get(name, "").strip() for name in names}
    for name, value in given.items():
        if len(value) > MOST_CHARACTERS:
            raise UserError(f"{name} has at most {MOST_CHARACTERS} characters")
    return {name: value for name, value in given.items() if value}


def page_number(text: str) -> int:
    """Return the number of a page. Raises UserError unless it is a whole number from 1."""
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise UserError(f'page is a whole number from 1, not "{text}"')
    return int(text)


def listing(
    request: Request,
    rows: Iterable[T],
    *,
    words: Callable[[T], Iterable[str]] | None = None,
    keys: Keys[T] | None = None,
    filters: Sequence[str] = (),
) -> Listing[T]:
    """Return a page of rows. ``words``: the texts of a row in which each word of ``q`` is looked
    for, without regard to case. ``filters``: parameters that the caller has applied. Raises
    UserError for a wrong parameter. A page behind the last shows the last."""
    given = parameters(request, "q", "sort", "page", *filters)
    number = page_number(given.get("page", "1"))
    every = list(rows)
    found = every
    if words is not None and "q" in given:
        asked = given["q"].casefold().split()
        found = [row for row in every if _has("\n".join(words(row)).casefold(), asked)]
    if keys:
        sort = given.get("sort") or next(iter(keys))
        if sort not in keys:
            raise UserError(f'there is no order "{sort}"; {nearest(sort, keys)}')
        found = sorted(found, key=keys[sort])
    pages = max(1, -(-len(found) // PAGE_ROWS))
    number = min(number, pages)
    return Listing(
        rows=found[(number - 1) * PAGE_ROWS : number * PAGE_ROWS],
        found=len(found),
        total=len(every),
        number=number,
        pages=pages,
        given=given,
        orders=tuple(keys or ()),
    )


def _has(text: str, words: Sequence[str]) -> bool:
    return all(word in text for word in words)


def most_first(value: float | None) -> tuple[bool, float]:
    """Return a key that sorts large values first, and unknown ones last."""
    return value is None, -(value or 0.0)


def least_first(value: float | None) -> tuple[bool, float]:
    """Return a key that sorts small values first, and unknown ones last."""
    return value is None, value or 0.0


def damaged(cache: ReadCache, *rows: Row[Any]) -> list[Cause]:
    """Return a cause for each unreadable record of these kinds, with what it affects."""
    patterns = {row.pattern for row in rows}
    return list(
        of_unreadable(r for r in cache.unreadable.values() if r.path.row.pattern in patterns)
    )


def damaged_in(picture: Picture, *rows: Row[Any]) -> list[Cause]:
    """Return the causes of the picture that are unreadable records of these kinds."""
    return [
        Cause(cause["what"], cause["advice"])
        for cause in picture.status["causes"]
        if cause["about"].endswith(UNREAD)
        for path in (cause["about"].removesuffix(UNREAD),)
        if any(row.matches(path) is not None or path == f"more of {row.pattern}" for row in rows)
    ]
