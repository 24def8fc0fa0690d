"""Lists objects that match a path in pages, in byte order of the path as in S3. Omits hidden and
unfinished objects (``globs``), dangling links, devices and directory markers. Counts objects
without a location: no UTF-8, or in URLs a question mark or an empty name."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

from flumeng.connectors.objects.file_trees import ArrowTree, LocalTree
from flumeng.connectors.objects.globs import Glob
from flumeng.connectors.objects.pages import PAGE, Listed, Page, Request, Tree
from flumeng.platform import secrets
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.file_store import open_store
from flumeng.platform.options.locations import store_of
from flumeng.platform.options.patterns import split_query
from flumeng.platform.remote_store import revealed

ASK_AT_ONCE = 8
SILENT_SECONDS = 120.0
"""Time-out of a page, for dead mounts and libraries without one."""


_Work = tuple["Future[Page]", Callable[[Request], Page], Request]


class Lister:
    """Lists one glob location. Raises UserError for an unknown scheme."""

    def __init__(self, location: str, *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._tree, self._head, path = _opened(location)
        self._name = split_query(location)[0]
        self._glob = Glob(path)
        self._silent_seconds = silent_seconds
        self._free_threads = threading.Semaphore(ASK_AT_ONCE)
        """Limits threads: one that hangs in a dead mount never returns."""

    def listing(self, after: str = "", *, strict: bool = False) -> Listing:
        """Return the objects after the name ``after``. An unreadable directory raises UserError: at
        once for the first directory or if ``strict``, else after all others are listed."""
        start = Request(self._glob.scope, after.removeprefix(self._head))
        return Listing(self, start, strict)


class Listing:
    """Pages of 1 to 1,000 objects, iterable once. Complete when it ends without an error."""

    def __init__(self, lister: Lister, start: Request, strict: bool) -> None:
        self._lister = lister
        self._start = start
        self._strict = strict
        self._refusal: UserError | None = None
        self._refused = 0
        self.unnamed = 0
        """Number of objects without a valid location; ``unnamed_example`` is one of them."""
        self.unnamed_example = ""

    def __iter__(self) -> Iterator[list[Listed]]:
        reading = _Reading(self._lister._free_threads)
        try:
            yield from self._pages(reading)
        finally:
            reading.end()
        if self._refusal is not None:
            others = f", and {self._refused - 1} more" if self._refused > 1 else ""
            raise UserError(f"{self._refusal}{others}") from self._refusal

    def _pages(self, reading: _Reading) -> Iterator[list[Listed]]:
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
        reading: _Reading,
        waiting: deque[list[Listed] | Request],
        asked: dict[Request, Future[Page]],
    ) -> None:
        ahead = 0
        for entry in waiting:
            if isinstance(entry, Request):
                if entry not in asked:
                    asked[entry] = reading.submit(self._lister._tree.page, entry)
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
                    f"{where}: no such directory: create it, or correct the path"
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


class _Reading:
    """Daemon threads of one listing, as many as are ``free``; they end with the listing."""

    def __init__(self, free: threading.Semaphore) -> None:
        self._free = free
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._started = 0

    def submit(self, work: Callable[[Request], Page], request: Request) -> Future[Page]:
        future: Future[Page] = Future()
        self._queue.put((future, work, request))
        if self._free.acquire(blocking=False):
            self._started += 1
            threading.Thread(target=self._run, name="listing", daemon=True).start()
        return future

    def end(self) -> None:
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        for _ in range(self._started):
            self._queue.put(None)

    def _run(self) -> None:
        try:
            while (work := self._queue.get()) is not None:
                future, call, request = work
                try:
                    future.set_result(call(request))
                except BaseException as error:
                    future.set_exception(error)
        finally:
            self._free.release()


def _opened(location: str) -> tuple[Tree, str, str]:
    store = store_of(location)
    if not store:
        head = "file://" if location.startswith("file://") else ""
        return LocalTree(head), head, location.removeprefix(head)
    plain, query = split_query(location)
    scheme, _, rest = plain.partition("://")
    host, _, path = rest.partition("/")
    head = f"{scheme}://{host}/"
    if store == "s3":
        from flumeng.connectors.objects.s3 import S3Tree  # noqa: PLC0415  an extra

        return S3Tree(host, revealed(query, secrets.resolve), head, query), head, path

    opened, root = open_store(f"{scheme}://{host}{query}")
    return ArrowTree(opened, root, head, query), head, path
