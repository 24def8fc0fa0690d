"""The settings of Spark of single nodes, which count before those of the cluster. Masters tell each
node what holds for it."""

from __future__ import annotations

from dataclasses import replace

from flumeng.control.commands.nodes import require_node
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import SETTINGS, SPARK, SettingRow, SparkSetting
from flumeng.control.zookeeper import Put, Store
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths


def on_node(store: Store, node: str, rows: list[SettingRow]) -> list[SettingRow]:
    """The settings of the cluster as they hold on a node. Raises ``UserError``."""
    own = require_node(store, node).value.spark
    return [replace(row, value=own.get(row.key.removeprefix(SPARK), row.value)) for row in rows]


def set_on_node(operator: Operator, node: str, key: str, text: str | None) -> bool:
    """Give a setting of Spark a value on one node, or with None that of the cluster again; gives
    whether that is a change.

    Raises ``UserError`` for a setting that is none of Spark's, a value that it does not take and
    an unknown node; ``ConflictError``, ``UnavailableError``.
    """
    setting = SETTINGS.get(key)
    if not isinstance(setting, SparkSetting):
        known = [name for name in SETTINGS if name.startswith(SPARK)]
        raise UserError(f"{key} is no setting of a single node; {nearest(key, known)}")
    current = require_node(operator.store, node)
    before = current.value.spark
    after = {name: value for name, value in before.items() if name != setting.name}
    if text is not None:
        after[setting.name] = setting.parse(text)
    if after == before:
        return False
    told, was = after.get(setting.name, "--unset"), before.get(setting.name, "unset")
    command = f"cluster set {key} {told} --node {node} (was {was})"
    wanted = replace(current.value, spark=after)
    operator.commit([Put(paths.node(node), wanted, current.version)], command)
    return True
