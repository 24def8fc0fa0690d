"""Access lists to those of kazoo and back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from kazoo.security import ACL, Id

from flumeng.control.zookeeper import AccessList
from zkschema.access import PERMISSIONS

BITS = {letter: 1 << number for number, letter in enumerate(PERMISSIONS)}


@lru_cache(maxsize=4096)
def to_kazoo(entries: AccessList) -> list[Any]:
    return [
        ACL(sum(BITS[letter] for letter in may), Id(*who.split(":", 1))) for who, may in entries
    ]


def of_kazoo(found: Iterable[Any]) -> AccessList:
    return tuple(sorted((f"{one.id.scheme}:{one.id.id}", _letters(one.perms)) for one in found))


def _letters(permissions: int) -> str:
    return "".join(letter for letter in PERMISSIONS if permissions & BITS[letter])
