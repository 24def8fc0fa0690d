"""Many znodes read with one request (ZooKeeper 3.6 and newer) for kazoo, which has none.

kazoo is extended by one request: opcode 22, whose body is that of a transaction (``MultiHeader`` of
ZooKeeper's ``zookeeper.jute``) with reads as its operations. One that fails does not fail the
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, KazooException
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import (
    GetData,
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

Answer: TypeAlias = tuple[bytes, ZnodeStat] | KazooException
END = multiheader_struct.pack(-1, True, -1)


class MultiRead(NamedTuple):
    """The request, in the shape that kazoo's connection expects."""

    paths: tuple[str, ...]
    type: int = 22

    def serialize(self) -> bytes:
        head = MultiHeader(GetData.type, False, -1).serialize()
        return b"".join([*(head + GetData(path, None).serialize() for path in self.paths), END])

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
            else:
                answers.append(EXCEPTIONS[int_struct.unpack_from(buffer, offset)[0]]())
                offset += int_struct.size


def read_async(client: KazooClient, paths: Sequence[str]) -> Any:
    """Ask for the data of all ``paths``; kazoo's async result, one ``Answer`` for each."""
    result = client.handler.async_result()
    client._call(MultiRead(tuple(_prefix_root(client.chroot, path) for path in paths)), result)
    return result
