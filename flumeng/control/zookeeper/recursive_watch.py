"""Persistent recursive watches (ZooKeeper 3.6) for kazoo.

It adds opcode 106 (``AddWatchRequest``) and sees each watch event before kazoo. The server forgets
the watch with the connection.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Watch, int_struct, write_string

PERSISTENT_RECURSIVE = 1


class AddWatch(NamedTuple):
    """The request, in the shape that kazoo's connection expects."""

    path: str
    mode: int = PERSISTENT_RECURSIVE
    type: int = 106

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(self.mode))

    @staticmethod
    def deserialize(_buffer: bytes, _offset: int) -> bool:
        return True


def hear_events(client: KazooClient, heard: Callable[[str], None]) -> None:
    """Calls ``heard(path)`` for every watch event, relative to the chroot, on kazoo's connection
    thread: it may only enqueue."""
    connection = client._connection
    original = connection._read_watch_event

    def read_watch_event(buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        heard(client.unchroot(event.path))
        original(buffer, offset)

    connection._read_watch_event = read_watch_event


def add_async(client: KazooClient, path: str) -> Any:
    """Asks the server to watch ``path`` and everything below; kazoo's async result."""
    result = client.handler.async_result()
    full = os.path.normpath(client.chroot + path) if client.chroot else path
    client._call(AddWatch(full), result)
    return result
