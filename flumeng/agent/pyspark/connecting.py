"""As whom a job connects."""

from __future__ import annotations

from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper import kazoo_store as zookeeper
from flumeng.platform.security.roles import PEOPLE


def connect(hosts: str) -> Store:
    """As the subscriber that this host has a certificate of; else as the person."""
    return zookeeper.connect(hosts, roles=["subscriber", *PEOPLE])
