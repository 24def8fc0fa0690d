"""Keys and values of resources. Pure. A key is ``KIND/NAME``: ``flow/web``,
``setting/grace_seconds``, ``choke/web``, ``choke/web@n1``, ``label/n1/role``,
``capacity/n1/slots``, ``site/fra``. A value is a flow's text, the shortest text of a number, or the
gateways and the authority of another site; ``HERE`` for the cluster's own name among sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from zkschema.records import Site

FLOW, SETTING, CHOKE, LABEL, CAPACITY = "flow", "setting", "choke", "label", "capacity"
SITE = "site"
HERE = "here"
AUTHORITY = " authority "

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


def site_text(site: Site) -> str:
    """Return the value of another site: ``gw1:9003 gw2:9003 authority 5f..``."""
    return " ".join(site.gateways) + (f"{AUTHORITY}{site.authority}" if site.authority else "")


def site_of(value: str) -> Site:
    """Return the record of a value other than ``HERE``."""
    gateways, _, authority = value.partition(AUTHORITY)
    return Site(gateways=tuple(gateways.split()), authority=authority)


def digest(value: str) -> str:
    """Return 128 bits of the value's SHA-256, to compare values."""
    return hashlib.sha256(value.encode()).hexdigest()[:32]
