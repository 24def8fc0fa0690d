"""Aliases that send an event elsewhere when it is written again: those that a rollover moves on."""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec

from flumeng.connectors.elasticsearch.options import INDEX_PART


class _Alias(msgspec.Struct):
    is_write_index: bool | None = None


class _Index(msgspec.Struct):
    aliases: dict[str, _Alias] = {}


def target_of(index: str) -> str:
    """The option ``index`` as a wildcard."""
    return INDEX_PART.sub("*", index)


def moving(content: bytes, index: str) -> str | None:
    """The first alias among those in ``content``, an answer of ``_alias``, that the option
    ``index`` may name and whose write index moves on. Raises ValueError for another answer."""
    found: defaultdict[str, list[bool | None]] = defaultdict(list)
    for one in msgspec.json.decode(content, type=dict[str, _Index]).values():
        for name, alias in one.aliases.items():
            found[name].append(alias.is_write_index)
    pattern = _pattern(index)
    for name, writes in sorted(found.items()):
        if pattern.fullmatch(name) and (len(writes) > 1 or writes[0] is not None):
            return name
    return None


def _pattern(index: str) -> re.Pattern[str]:
    parts = INDEX_PART.split(index)
    found = ""
    for fixed, time, column in zip(
        parts[::3], [*parts[1::3], None], [*parts[2::3], None], strict=True
    ):
        found += re.escape(fixed) + ("[0-9]+" if time else "[a-z0-9._-]+" if column else "")
    return re.compile(found)
