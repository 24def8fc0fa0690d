"""Requests of ZooKeeper 3.6 that kazoo lacks, multi-reads and persistent recursive watches, and
corrections of its connection. Opcode 22 is a ``MultiHeader`` of reads that fail independently;
opcode 106 an ``AddWatchRequest``. The server drops watches when the connection ends."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, KazooException
from kazoo.protocol.connection import AUTH_XID
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    MultiHeader,
    Watch,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import KeeperState, ZnodeStat

Answer: TypeAlias = tuple[bytes, ZnodeStat] | list[str] | KazooException
"""The data of a znode, the names in a folder, or an error."""
PERSISTENT_RECURSIVE = 1
END = multiheader_struct.pack(-1, True, -1)


class MultiRead(NamedTuple):
    """A multi-read request, in the form that kazoo's connection expects."""

    paths: tuple[str, ...]
    folders: tuple[str, ...]
    type: int = 22

    def serialize(self) -> bytes:
        data, names = (MultiHeader(of.type, False, -1).serialize() for of in (GetData, GetChildren))
        return b"".join(
            [
                *(data + GetData(path, None).serialize() for path in self.paths),
                *(names + GetChildren(path, None).serialize() for path in self.folders),
                END,
            ]
        )

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[Answer]:
        answers: list[Answer] = []
        while True:
            header, offset = MultiHeader.deserialize(buffer, offset)
            if header.done:
                return answers
            if header.type == GetData.type:
                data, offset = read_buffer(buffer, offset)
                answers.append((data, ZnodeStat._make(stat_struct.unpack_from(buffer, offset))))
                offset += stat_struct.size
            elif header.type == GetChildren.type:
                names, offset = _names(buffer, offset)
                answers.append(names)
            else:
                answers.append(EXCEPTIONS[int_struct.unpack_from(buffer, offset)[0]]())
                offset += int_struct.size


def read_async(client: KazooClient, paths: Sequence[str], folders: Sequence[str] = ()) -> Any:
    """Send a multi-read; return an async result with an ``Answer`` per path, then per folder."""
    result = client.handler.async_result()
    client._call(MultiRead(_whole(client, paths), _whole(client, folders)), result)
    return result


def _whole(client: KazooClient, paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(_prefix_root(client.chroot, path) for path in paths)


def _names(buffer: bytes, offset: int) -> tuple[list[str], int]:
    count = int_struct.unpack_from(buffer, offset)[0]
    offset += int_struct.size
    names = []
    for _ in range(count):
        name, offset = read_string(buffer, offset)
        names.append(name)
    return names, offset


class AddWatch(NamedTuple):
    """A request for a watch, in the form that kazoo's connection expects."""

    path: str
    mode: int = PERSISTENT_RECURSIVE
    type: int = 106

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(self.mode))

    @staticmethod
    def deserialize(_buffer: bytes, _offset: int) -> bool:
        return True


def hear_events(client: KazooClient, enqueue: Callable[[str], None]) -> None:
    """Call ``enqueue(path)`` for every watch event, on kazoo's thread: it must only enqueue."""
    connection = client._connection
    original = connection._read_watch_event

    def read_watch_event(buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        enqueue(client.unchroot(event.path))
        original(buffer, offset)

    connection._read_watch_event = read_watch_event


def match_auth_answers(client: KazooClient) -> None:
    """Give the answer of an added credential, which overtakes earlier requests, to its own request
    instead of to the oldest pending one."""
    connection = client._connection
    original = connection._read_header

    def read_header(timeout: float) -> tuple[Any, bytes, int]:
        header, buffer, offset = original(timeout)
        if header.xid == AUTH_XID:
            pending = client._pending
            asked = next((request for request in pending if request[2] == AUTH_XID), None)
            if asked is not None:  # none while a connection is made
                pending.remove(asked)
                pending.appendleft(asked)
        return header, buffer, offset

    connection._read_header = read_header


def reconnect_after_errors(client: KazooClient) -> None:
    """Treat an unexpected exception in kazoo's thread, logged by kazoo, as a dropped connection
    instead of the end of the connection for good."""
    connection = client._connection
    original = connection._connect_attempt

    def connect_attempt(*where: Any) -> Any:
        try:
            return original(*where)
        except Exception:
            if client._state != KeeperState.CONNECTING:
                client._session_callback(KeeperState.CONNECTING)
            return None

    connection._connect_attempt = connect_attempt


def watch_async(client: KazooClient, path: str) -> Any:
    """Watch ``path`` and everything below it; return kazoo's async result."""
    result = client.handler.async_result()
    full = os.path.normpath(client.chroot + path) if client.chroot else path
    client._call(AddWatch(full), result)
    return result
