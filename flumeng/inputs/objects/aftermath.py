"""What becomes of objects when all of their events are acked: they stay, go, or are moved.

It may be done any number of times. An object that was written anew meanwhile is another one, and is
left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyarrow import fs

from flumeng.errors import FlumengError, UnavailableError
from flumeng.runtime.file_store import FileStore, below, open_store
from flumeng.spec.locations import located
from flumeng.spec.objects_source import ObjectsSource
from flumeng.spec.patterns import split_query
from flumeng.state.items import Item

AT_ONCE = 8


class Aftermath:
    """Of the objects of one source."""

    def __init__(self, source: ObjectsSource) -> None:
        self._source = source
        places = [split_query(path)[0] for path in source.paths]
        self._roots = sorted(map(_fixed_directory, places), key=len, reverse=True)

    def clear(self, done: Sequence[Item]) -> str:
        """Of objects that are done. Says why one of them is still there, or nothing."""
        if self._source.after == "keep" or not done:
            return ""
        act = self._delete if self._source.after == "delete" else self._move
        with ThreadPoolExecutor(AT_ONCE, "aftermath") as pool:
            return next(filter(None, pool.map(lambda item: self._once(item, act), done)), "")

    def _once(self, item: Item, act: Callable[[FileStore, str, Item], None]) -> str:
        store, path = open_store(located(item.location, self._source.credentials))
        place = split_query(item.location)[0]
        try:
            (info,) = store.files.get_file_info([path])
            if _is_it(info, item):
                act(store, path, item)
        except FlumengError as error:
            return f"{place} is done, and is still there: {error}"
        except (pa.ArrowException, OSError) as error:
            why = store.explained(error) if isinstance(error, OSError) else error
            if isinstance(why, UnavailableError):
                raise why from error
            return f"{place} is done, and is still there: {why}"
        return ""

    def _delete(self, store: FileStore, path: str, item: Item) -> None:
        del item
        store.files.delete_file(path)

    def _move(self, store: FileStore, path: str, item: Item) -> None:
        assert self._source.move_to is not None
        place = split_query(item.location)[0]
        root = next(root for root in self._roots if place.startswith(root))
        to = located(below(self._source.move_to, place[len(root) :]), self._source.credentials)
        store.rename([(path, open_store(to)[1])])
        if store.exists(path):  # an object store has copied it
            store.files.delete_file(path)


def _is_it(info: fs.FileInfo, item: Item) -> bool:
    """Whether the object is there as it was listed; stores tell times with whole seconds."""
    if info.type != fs.FileType.File or info.size != item.size:
        return False
    return info.mtime_ns is None or abs(info.mtime_ns // 1000 - item.modified_us) < 1_000_000


def _fixed_directory(path: str) -> str:
    """What comes before the first name with a pattern in it; below ``move_to`` it is left out."""
    return re.split(r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0] + "/"
