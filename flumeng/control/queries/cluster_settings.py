"""The settings of a cluster, or those in force on one node, and maintenance mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.control.commands.nodes import on_node
from flumeng.control.commands.settings import SettingRow, Value, settings
from flumeng.control.zookeeper import ReadableStore
from zkschema.records import Maintenance


@dataclass(frozen=True)
class ClusterSettings:
    """``settings``: values by key, None where a setting has none. ``maintenance``: None if off."""

    settings: Mapping[str, Value | None]
    maintenance: Maintenance | None


def rows(
    store: ReadableStore, node: str | None = None
) -> tuple[list[SettingRow], Maintenance | None]:
    """Return every setting of the cluster or in force on ``node``, and maintenance mode. Raises
    UnknownNameError for an unknown node."""
    found, maintenance = settings(store)
    return (found if node is None else on_node(store, node, found)), maintenance


def cluster_settings(store: ReadableStore, node: str | None = None) -> ClusterSettings:
    """Return the values alone. Raises as ``rows``."""
    found, maintenance = rows(store, node)
    return ClusterSettings({row.key: row.value for row in found}, maintenance)
