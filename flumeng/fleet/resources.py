"""Keys and values of resources. Pure. A key is ``KIND/NAME``: ``flow/web``,
``setting/grace_seconds``, ``choke/web``, ``choke/web@n1``, ``label/n1/role``,
``capacity/n1/slots``. A value is a flow's text, or the shortest text of a number."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

FLOW, SETTING, CHOKE, LABEL, CAPACITY = "flow", "setting", "choke", "label", "capacity"
KINDS = (FLOW, SETTING, CHOKE, LABEL, CAPACITY)

Resources = Mapping[str, str]


def kind_of(key: str) -> str:
    return key.partition("/")[0]


def name_of(key: str) -> str:
    return key.partition("/")[2]


def of_node(key: str) -> tuple[str, str]:
    """Return the node and its label or dimension in a key. A label may contain slashes."""
    node, _, name = name_of(key).partition("/")
    return node, name


def number_text(value: float) -> str:
    """Return the shortest text of a number, ``5`` for 5.0; it parses to the same number."""
    return str(int(value)) if value == int(value) else repr(value)


def setting_text(value: float | str) -> str:
    return value if isinstance(value, str) else number_text(value)


def digest(value: str) -> str:
    """Return 128 bits of the value's SHA-256, to compare values."""
    return hashlib.sha256(value.encode()).hexdigest()[:32]
