"""The objects that one path means, page by page in the order of their names.

A listing looks only into directories that the glob can mean, holds a few pages of each level at a
time, and asks for those that come next while the first are being looked at. The order is that of
the whole path, byte by byte, in all stores as in S3, so a listing can begin behind any name.

What is hidden or in progress is left out (``globs``), and so are links that lead nowhere, devices
and markers of directories. Objects without any bytes are listed as all others. A directory that
vanishes meanwhile has nothing in it. Objects that no location can name are counted: names that are
not UTF-8; in URLs those with a question mark, which begins the query, or with an empty name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from flumeng.connectors.objects.globs import Glob
from flumeng.connectors.objects.listed import Listed
from flumeng.connectors.objects.local_tree import LocalTree
from flumeng.connectors.objects.pages import PAGE, Page, Request, Tree
from flumeng.connectors.objects.readers import Readers, Reading
from flumeng.platform import secrets
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.file_store import open_store
from flumeng.platform.options.locations import store_of
from flumeng.platform.options.patterns import split_query
from flumeng.platform.remote_store import Resolve, revealed

ASK_AT_ONCE = 8
SILENT_SECONDS = 120.0
"""For a page. Clients of networks have shorter limits of their own; a dead mount or a library
without limits is given up after this."""


class Lister:
    """Of one path: a location whose path is a glob. Raises UserError for one nobody serves."""

    def __init__(
        self,
        location: str,
        resolve: Resolve = secrets.resolve,
        *,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._tree, self._head, path = _opened(location, resolve)
        self._name = split_query(location)[0]
        self._glob = Glob(path)
        self._silent_seconds = silent_seconds
        self._readers = Readers(ASK_AT_ONCE)

    def listing(self, after: str = "", *, strict: bool = False) -> Listing:
        """Of what lies behind the place ``after``. It ends at the first directory that cannot be
        looked at when it is ``strict``, as whoever goes on behind the last name needs it; else it
        raises the same UserError when all others are listed."""
        start = Request(self._glob.scope, after.removeprefix(self._head))
        return Listing(self, start, strict)


class Listing:
    """Iterated once, it gives pages of 1 to 1,000 objects. It is complete when it has ended without
    raising UserError or UnavailableError."""

    def __init__(self, lister: Lister, start: Request, strict: bool) -> None:
        self._lister = lister
        self._start = start
        self._strict = strict
        self._refusal: UserError | None = None
        self._refused = 0
        self.unnamed = 0
        """So many objects have no location; ``unnamed_example`` is one of them."""
        self.unnamed_example = ""

    def __iter__(self) -> Iterator[list[Listed]]:
        reading: Reading[Page] = Reading(self._lister._readers)
        try:
            yield from self._pages(reading)
        finally:
            reading.end()
        if self._refusal is not None:
            others = f", and {self._refused - 1} more" if self._refused > 1 else ""
            raise UserError(f"{self._refusal}{others}") from self._refusal

    def _pages(self, reading: Reading[Page]) -> Iterator[list[Listed]]:
        asked: dict[Request, Future[Page]] = {}
        waiting: deque[list[Listed] | Request] = deque([self._start])
        page: list[Listed] = []
        while waiting:
            self._ask_ahead(reading, waiting, asked)
            first = waiting.popleft()
            if isinstance(first, Request):
                answer = self._answer(first, asked.pop(first))
                waiting.extendleft(reversed(list(answer.runs())))
                continue
            page += first
            while len(page) >= PAGE:
                yield page[:PAGE]
                page = page[PAGE:]
        if page:
            yield page

    def _ask_ahead(
        self,
        reading: Reading[Page],
        waiting: deque[list[Listed] | Request],
        asked: dict[Request, Future[Page]],
    ) -> None:
        """For what comes first: a bounded number, however many directories there are."""
        ahead = 0
        for one in waiting:
            if isinstance(one, Request):
                if one not in asked:
                    asked[one] = reading.submit(self._lister._tree.page, one)
                ahead += 1
                if ahead == ASK_AT_ONCE:
                    return

    def _answer(self, request: Request, future: Future[Page]) -> Page:
        lister = self._lister
        is_root = request.scope is self._start.scope
        try:
            page = future.result(lister._silent_seconds)
        except TimeoutError:
            raise UnavailableError(
                f"{lister._name}: no answer in {lister._silent_seconds:g} s"
            ) from None
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_root and lister._tree.lasting:
                where = f"{lister._head}{request.scope.directory}"
                raise UserError(
                    f"{where}: no such directory: create it, or mend the path"
                ) from error
            return Page()
        except UserError as error:
            if is_root or self._strict:
                raise
            self._refusal = self._refusal or error
            self._refused += 1
            return Page()
        if page.unnamed:
            self.unnamed_example = self.unnamed_example or page.unnamed[0]
            self.unnamed += len(page.unnamed)
        return page


def _opened(location: str, resolve: Resolve) -> tuple[Tree, str, str]:
    """The tree, how places in it begin, and the glob there."""
    store = store_of(location)
    if not store:
        head = "file://" if location.startswith("file://") else ""
        return LocalTree(head), head, location.removeprefix(head)
    place, query = split_query(location)
    scheme, _, rest = place.partition("://")
    host, _, path = rest.partition("/")
    head = f"{scheme}://{host}/"
    if store == "s3":
        from flumeng.connectors.objects.s3_tree import S3Tree  # noqa: PLC0415  an extra

        return S3Tree(host, revealed(query, resolve), head, query), head, path
    from flumeng.connectors.objects.arrow_tree import ArrowTree  # noqa: PLC0415  loads pyarrow

    opened, root = open_store(f"{scheme}://{host}{query}", resolve)
    return ArrowTree(opened, root, head, query), head, path
