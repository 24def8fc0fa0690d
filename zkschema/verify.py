"""Checks whether a tree conforms to the table of znodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkschema import bootstrap, codec, records, table


@dataclass(frozen=True)
class Problem:
    """A fault. ``remedy`` describes the automatic repair; empty when a person has to repair it."""

    path: str
    what: str
    remedy: str = ""


def verify(tree: Mapping[str, bytes]) -> list[Problem]:
    """Return the problems of ``tree`` (data by path relative to the chroot) in path order: missing
    or unknown znodes, data that does not decode or is too large, and an unusable schema version."""
    version = tree_version(tree)
    problems = [
        Problem(str(path), "missing: run `flumeng schema init`")
        for path, _ in bootstrap.initial(version=version)
        if str(path) not in tree
    ]
    for path, data in tree.items():
        what = _fault(path, data, version)
        if what:
            problems.append(Problem(path, what))
    return sorted(problems, key=lambda problem: problem.path)


def tree_version(tree: Mapping[str, bytes]) -> int:
    """Return the version of the tree; this code's version when the tree has no usable one."""
    try:
        version = codec.decode(records.Schema, tree.get(str(table.schema()), b"")).version
    except codec.DecodeError:
        return table.VERSION
    return version if table.OLDEST <= version <= table.VERSION else table.VERSION


def _fault(path: str, data: bytes, version: int) -> str | None:
    row = table.find(path, version)
    if row is None:
        return "no such znode in the schema"
    if len(data) > row.size_bytes:
        return f"the data has {len(data)} bytes, and at most {row.size_bytes} are allowed"
    if row.record is None:
        return None
    try:
        record = codec.decode(row.record, data)
    except codec.DecodeError as error:
        return str(error)
    if isinstance(record, records.Schema) and record.version != version:
        most = f"this flumeng supports versions up to {table.VERSION}"
        return f"schema version {record.version} is unsupported: {most}"
    return None
