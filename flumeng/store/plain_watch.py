"""Watches of whole subtrees for servers that have only plain ones (ZooKeeper before 3.6).

A plain watch covers one znode and is used up by firing. So each znode below a watched path has two,
on itself and on its list of children, and each is set again before anyone is told: whoever reads
then misses no later change. Costs two requests a znode at each connect, and one or two a change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent


class PlainWatches:
    """``heard`` is told each changed path, on kazoo's threads. ``_known``: path -> names below."""

    def __init__(self, client: KazooClient, heard: Callable[[str], None]) -> None:
        self._client = client
        self._heard = heard
        self._known: dict[str, set[str]] = {}

    def add(self, path: str, wait: Callable[[Any], Any]) -> None:
        """Watch ``path`` and everything below; ``wait`` gives the result of an async call."""
        waiting = [path]
        while waiting:
            calls = [(each, self._watch_itself(each), self._watch_names(each)) for each in waiting]
            waiting = []
            for each, itself, names in calls:
                wait(itself)
                try:
                    self._known[each] = set(wait(names))
                except NoNodeError:
                    continue
                waiting += [_below(each, name) for name in self._known[each]]

    def _watch_itself(self, path: str) -> Any:
        return self._client.exists_async(path, watch=self._on_change)

    def _watch_names(self, path: str) -> Any:
        return self._client.get_children_async(path, watch=self._on_names)

    def _on_change(self, event: WatchedEvent) -> None:
        if event.type == EventType.NONE:
            return
        if event.type == EventType.DELETED:
            parent, _, name = event.path.rpartition("/")
            self._known.get(parent or "/", set()).discard(name)
        self._look(event.path, with_names=event.type == EventType.CREATED)

    def _on_names(self, event: WatchedEvent) -> None:
        if event.type == EventType.CHILD:
            self._list(event.path)

    def _look(self, path: str, *, with_names: bool) -> None:
        self._watch_itself(path).rawlink(lambda _: self._heard(path))
        if with_names:
            self._list(path)

    def _list(self, path: str) -> None:
        self._watch_names(path).rawlink(lambda call: self._on_listed(path, call))

    def _on_listed(self, path: str, call: Any) -> None:
        if not call.successful():
            return
        names = set(call.get_nowait())
        fresh = names - self._known.get(path, set())
        self._known[path] = names
        for name in fresh:
            self._look(_below(path, name), with_names=True)


def _below(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"
