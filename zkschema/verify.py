"""Does a tree keep to the table? Pure: looks at paths and bytes, writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkschema import bootstrap, codec, table


@dataclass(frozen=True)
class Problem:
    """``remedy`` is what a repair would do about it; empty when only a person can."""

    path: str
    what: str
    remedy: str = ""


def verify(tree: Mapping[str, bytes]) -> list[Problem]:
    """Everything wrong with ``tree`` (path relative to the chroot -> data), in path order.

    Found are: missing fixed znodes, znodes that no row knows, data that does not decode, data over
    its bound, data in folders, and a schema version other than this code's.
    """
    problems = [
        Problem(str(path), "missing: run `flumeng schema init`")
        for path, _ in bootstrap.initial()
        if str(path) not in tree
    ]
    for path, data in tree.items():
        what = _fault(path, data)
        if what:
            problems.append(Problem(path, what))
    return sorted(problems, key=lambda problem: problem.path)


def _fault(path: str, data: bytes) -> str | None:
    row = table.find(path)
    if row is None:
        return "no such znode in the schema"
    if len(data) > row.size_bytes:
        return f"{len(data)} bytes, at most {row.size_bytes} are allowed"
    if row.record is None:
        return None
    try:
        record = codec.decode(row.record, data)
    except codec.DecodeError as error:
        return str(error)
    version = getattr(record, "version", None)
    if path == table.schema().path and version != table.VERSION:
        return f"schema version {version}, this flumeng knows {table.VERSION}"
    return None
