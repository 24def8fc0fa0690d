"""Deletes, moves or tags fully acked objects. Idempotent; rewritten objects are left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from flumeng.connectors.objects.open_item import ChangedError, check_there
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.control.snapshot.items import Item
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.file_store import FileStore, below, open_store
from flumeng.platform.options.locations import located
from flumeng.platform.options.patterns import split_query

AT_ONCE = 8
Open = Callable[[str], tuple[FileStore, str]]


class Cleanup:
    def __init__(self, source: ObjectsSource, open_: Open = open_store) -> None:
        self._source = source
        self._open = open_
        globs = [split_query(path)[0] for path in source.paths]
        fixed = (re.split(r"[*?\[]", glob, maxsplit=1)[0].rpartition("/")[0] for glob in globs)
        self._roots = sorted((f"{root}/" for root in fixed), key=len, reverse=True)
        """The fixed directories before the first wildcards; paths below ``move_to`` omit them."""

    def clear(self, done: Sequence[Item]) -> str:
        """Process acked objects. Returns the reason why one of them remains, or an empty text.
        Raises UnavailableError."""
        once = {
            "keep": None,
            "delete": partial(self._once, lambda store, path, _: store.files.delete_file(path)),
            "move": partial(self._once, self._move),
            "tag": self._tag,
        }[self._source.after]
        if once is None or not done:
            return ""
        with ThreadPoolExecutor(AT_ONCE, "cleanup") as pool:
            return next(filter(None, pool.map(once, done)), "")

    def _tag(self, item: Item) -> str:
        from flumeng.connectors.objects.s3 import tag  # noqa: PLC0415  an extra

        try:
            tag(located(item.location, self._source.credentials), item, self._source.tags)
        except UserError as error:
            return f"{split_query(item.location)[0]} was read, but cannot be tagged: {error}"
        return ""

    def _once(self, act: Callable[[FileStore, str, Item], None], item: Item) -> str:
        store, path = self._open(located(item.location, self._source.credentials))
        name = split_query(item.location)[0]
        try:
            if _is_there(item, store, path):
                act(store, path, item)
        except UnavailableError:
            raise
        except FlumengError as error:
            return f"{name} was read, but cannot be removed: {error}"
        except (pa.ArrowException, OSError) as error:
            why = store.explained(error) if isinstance(error, OSError) else error
            if isinstance(why, UnavailableError):
                raise why from error
            return f"{name} was read, but cannot be removed: {why}"
        return ""

    def _move(self, store: FileStore, path: str, item: Item) -> None:
        assert self._source.move_to is not None
        name = split_query(item.location)[0]
        root = next(root for root in self._roots if name.startswith(root))
        to = located(below(self._source.move_to, name[len(root) :]), self._source.credentials)
        store.rename([(path, open_store(to)[1])])
        if _is_there(item, store, path):  # an object store has copied it
            store.files.delete_file(path)


def _is_there(item: Item, store: FileStore, path: str) -> bool:
    try:
        check_there(item, store, path)
    except ChangedError:
        return False
    return True
