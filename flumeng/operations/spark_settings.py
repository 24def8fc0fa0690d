"""The settings of Spark, of the cluster and of single nodes, as ``flumeng cluster`` shows and
changes them. Masters tell each node what holds for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flumeng.errors import UserError
from flumeng.operations import audit
from flumeng.operations.nodes import require_node
from flumeng.spec import spark
from flumeng.spec.problems import nearest
from flumeng.store import Put, Store, Versioned, tree
from zkschema import paths, records

PREFIX = "spark."


@dataclass(frozen=True)
class SparkRow:
    """``value`` is what holds, as text; ``of`` whose it is: a node's, the cluster's or none."""

    key: str
    value: str
    default: str
    of: str
    doc: str


def spark_settings(store: Store, node: str | None = None) -> list[SparkRow]:
    """Every setting as it holds in the cluster, or on one node. Raises ``UserError``."""
    cluster = _cluster(store).value.spark
    own = require_node(store, node).value.spark if node is not None else {}
    rows = []
    for key in spark.KEYS:
        of = f"node {node}" if key in own else "cluster" if key in cluster else ""
        default = spark.default(key)
        value = spark.effective(cluster, own).get(key, default)
        rows.append(SparkRow(f"{PREFIX}{key}", value, default, of, spark.doc_of(key)))
    return rows


def set_spark(
    store: Store,
    setting: str,
    text: str | None,
    node: str | None = None,
    *,
    author: str,
    reason: str,
    now: float,
) -> bool:
    """Give a setting a value, or with None its default again, in the cluster or on one node; gives
    whether that is a change.

    Raises ``UserError`` for a setting that there is not or a value that it does not take, and for
    an unknown node; ``ConflictError``, ``UnavailableError``.
    """
    key = setting.removeprefix(PREFIX)
    if key not in spark.KEYS:
        known = [f"{PREFIX}{name}" for name in spark.KEYS]
        raise UserError(f'there is no setting "{setting}"; {nearest(setting, known)}')
    current: Versioned[records.Node] | Versioned[records.Cluster]
    current = _cluster(store) if node is None else require_node(store, node)
    before: Mapping[str, str] = current.value.spark
    after = {name: value for name, value in before.items() if name != key}
    if text is not None:
        after[key] = spark.normal(key, text)
        spark.read(after)
    if after == before:
        return False
    told = f"cluster set {setting} {'--unset' if text is None else after[key]}"
    whose = "" if node is None else f" --node {node}"
    was = before.get(key, "unset")
    entry = records.Audit(who=author, command=f"{told}{whose} (was {was})", reason=reason, time=now)
    path = paths.cluster() if node is None else paths.node(node)
    wanted = replace(current.value, spark=after)
    audit.commit(store, [Put(path, wanted, current.version)], entry)
    return True


def _cluster(store: Store) -> Versioned[records.Cluster]:
    tree.require(store)
    found = store.read(paths.cluster())
    if found is None:
        raise UserError("this chroot has no /cluster: run `flumeng schema init`")
    return found
