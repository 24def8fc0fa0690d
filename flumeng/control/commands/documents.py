"""Znodes as plain documents, whatever their kind and version: for whole-tree work only.

Everyone else reads and writes records by their row of the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from flumeng.control.zookeeper import WIRE_LIMIT_BYTES
from flumeng.platform.errors import CorruptError
from zkschema import codec, table
from zkschema.immutable import dataclass
from zkschema.records import Record
from zkschema.table import Row, ZPath


@dataclass(frozen=True, kw_only=True)
class AnyRecord(Record):
    """All fields are in ``extra``; to be written, they must hold ``"v"``."""

    VERSION: ClassVar[int] = sys.maxsize


def documents(dump: Mapping[str, bytes]) -> dict[str, dict[str, Any] | None]:
    """Every persistent znode: path -> document, None for a folder. Raises ``CorruptError``."""
    found = {}
    for path, data in dump.items():
        row = table.find(path)
        if row is None or row.lifetime == "persistent":
            found[path] = _document(path, data)
    return found


def at(path: str, document: Mapping[str, Any] | None) -> tuple[ZPath[Record], Record | None]:
    """What a write of the document takes: path and value."""
    kind = None if document is None else AnyRecord
    row: Row[Record] = Row(path, kind, "persistent", "", WIRE_LIMIT_BYTES, 0, "")
    return ZPath(path, row), None if document is None else AnyRecord(extra=document)


def encoded(document: Mapping[str, Any] | None) -> bytes:
    """What a write of the document sends."""
    value = at("/", document)[1]
    return b"" if value is None else codec.encode(value)


def _document(path: str, data: bytes) -> dict[str, Any] | None:
    if not data:
        return None
    try:
        document = json.loads(codec.unpack(data))
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path}: not JSON: see `flumeng schema verify`") from error
    if not isinstance(document, dict):
        raise CorruptError(f"{path}: not an object: see `flumeng schema verify`")
    return document
