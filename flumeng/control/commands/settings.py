"""Cluster settings, chokes of flows, and maintenance mode. Masters read them in each tick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flumeng.config import spark
from flumeng.control.commands.lookup import refuse_deleted, require_flow, require_node
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Check, Put, ReadableStore, Store, Versioned, Write, tree
from flumeng.platform.errors import ConflictError, UnknownNameError, UserError
from flumeng.platform.options.option import described
from flumeng.platform.options.problems import nearest
from flumeng.platform.options.quantities import size
from zkschema import paths, records
from zkschema.records import Cluster, MaintenanceLimits

Number = int | float
Value = Number | str
SPARK = "spark."


@dataclass(frozen=True)
class NumberSetting:
    """A number. ``get`` gives the default if unset; ``unset`` restores it. ``whole``: integers."""

    key: str
    doc: str
    get: Callable[[Cluster], Number | None]
    put: Callable[[Cluster, Any], Cluster]
    unset: Callable[[Cluster], Cluster]
    whole: bool = False
    least: float = 0
    most: float | None = None

    @property
    def range(self) -> str:
        noun = "a whole number" if self.whole else "a number"
        upper = f" to {self.most:g}" if self.most is not None else " or more"
        return f"{noun}, {self.least:g}{upper}"

    def parse(self, text: str) -> Number:
        try:
            value: Number = int(text) if self.whole else float(text)
        except ValueError as error:
            raise UserError(f"{self.key} takes {self.range}, not {text!r}") from error
        if not self.least <= value <= (float("1e12") if self.most is None else self.most):
            raise UserError(f"{self.key} takes {self.range}, not {text}")
        return value


@dataclass(frozen=True)
class SparkSetting:
    """A setting of Spark, whose value is YAML on one line."""

    key: str

    @property
    def name(self) -> str:
        return self.key.removeprefix(SPARK)

    @property
    def doc(self) -> str:
        return described(spark.KEYS[self.name]).doc

    def get(self, cluster: Cluster) -> str | None:
        return cluster.spark.get(self.name, spark.default(self.name))

    def put(self, cluster: Cluster, value: Any) -> Cluster:
        return replace(cluster, spark={**cluster.spark, self.name: value})

    def unset(self, cluster: Cluster) -> Cluster:
        return replace(cluster, spark={k: v for k, v in cluster.spark.items() if k != self.name})

    def parse(self, text: str) -> str:
        return spark.normal(self.name, text)


Setting = NumberSetting | SparkSetting


@dataclass(frozen=True)
class SettingRow:
    key: str
    value: Value | None
    default: Value | None
    doc: str


def _throttle(key: str, default: int | None, doc: str, least: int = 0) -> NumberSetting:
    return NumberSetting(
        key,
        doc,
        lambda cluster: cluster.throttles.get(key, default),
        lambda cluster, value: replace(cluster, throttles={**cluster.throttles, key: int(value)}),
        lambda cluster: replace(
            cluster, throttles={k: most for k, most in cluster.throttles.items() if k != key}
        ),
        whole=True,
        least=least,
    )


def _limit(key: str, doc: str, *, whole: bool = False, most: float | None = None) -> NumberSetting:
    """Return the setting ``maintenance_FIELD`` of a field of ``maintenance_limits``."""
    field = key.removeprefix("maintenance_")

    def put(cluster: Cluster, value: Number) -> Cluster:
        changed: Any = {field: int(value) if whole else float(value)}
        return replace(cluster, maintenance_limits=replace(cluster.maintenance_limits, **changed))

    return NumberSetting(
        key,
        doc,
        lambda cluster: getattr(cluster.maintenance_limits, field),
        put,
        lambda cluster: put(cluster, getattr(MaintenanceLimits(), field)),
        whole=whole,
        least=1 if whole else 0,
        most=most,
    )


def _seconds(key: str, doc: str) -> NumberSetting:

    def put(cluster: Cluster, value: Number) -> Cluster:
        changed: Any = {key: float(value)}
        return replace(cluster, **changed)

    return NumberSetting(
        key,
        doc,
        lambda cluster: getattr(cluster, key),
        put,
        lambda cluster: put(cluster, getattr(Cluster(), key)),
    )


_NUMBERS = (
    _seconds("grace_seconds", "how long a node may be missing before its tasks are reassigned"),
    _seconds("drain_limit_seconds", "how long a task may drain before it is revoked"),
    _seconds(
        "forget_after_seconds",
        "a node that is down for this long and holds nothing is removed; 0: never",
    ),
    _throttle("balance", 1, "the most balance moves at once"),
    _throttle(
        "balance_per_node",
        None,
        "the most balance moves to or from one node; unset: no limit of its own",
    ),
    _throttle(
        "balance_per_flow", None, "the most balance moves of one flow; unset: no limit of its own"
    ),
    _throttle(
        "recovery",
        None,
        "tasks of lost nodes are reassigned while fewer collect tasks than this are starting; "
        "unset: all at once",
        least=1,
    ),
    _limit(
        "maintenance_nodes",
        "maintenance begins automatically when at least this many active nodes are missing",
        whole=True,
    ),
    _limit(
        "maintenance_enter",
        "and only when the missing nodes exceed this share of all active nodes",
        most=1,
    ),
    _limit(
        "maintenance_leave", "automatic maintenance ends when at most this share is missing", most=1
    ),
    _limit(
        "maintenance_window_seconds",
        "a node that is down for longer counts neither as missing nor as active",
    ),
)
SETTINGS: Mapping[str, Setting] = {
    **{setting.key: setting for setting in _NUMBERS},
    **{f"{SPARK}{key}": SparkSetting(f"{SPARK}{key}") for key in spark.KEYS},
}


def shown(value: Value | None) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) else f"{value:g}"


def settings(store: ReadableStore) -> tuple[list[SettingRow], records.Maintenance | None]:
    """Return every setting, and the maintenance mode while it is on."""
    cluster = _read(store).value
    rows = [
        SettingRow(setting.key, setting.get(cluster), setting.get(Cluster()), setting.doc)
        for setting in SETTINGS.values()
    ]
    return rows, cluster.maintenance


def set_setting(operator: Operator, key: str, text: str) -> bool:
    """Set a value; return whether it changed. Raises ``UserError`` for a bad key or value."""
    setting = _setting(key)
    value = setting.parse(text)
    command = f"cluster set {key} {shown(value)}"

    def put(cluster: Cluster) -> Cluster:
        after = setting.put(cluster, value)
        if isinstance(setting, SparkSetting):
            _require_fitting(after.spark)
        return after

    return _change(operator, setting, put, command)


def require_fitting(store: Store, node: Mapping[str, str]) -> None:
    """Raise ``UserError`` when the Spark settings in force on a node exclude each other. ``node``:
    its own."""
    _require_fitting(spark.effective(_read(store).value.spark, node))


def _require_fitting(texts: Mapping[str, str]) -> None:
    spark.read(spark.supported(texts))


def unset_setting(operator: Operator, key: str) -> bool:
    """Restore the default; return whether that is a change."""
    setting = _setting(key)
    command = f"cluster set {key} --unset"
    return _change(operator, setting, setting.unset, command)


def _setting(key: str) -> Setting:
    setting = SETTINGS.get(key)
    if setting is None:
        raise UnknownNameError(f'there is no setting "{key}"; {nearest(key, SETTINGS)}')
    return setting


def _change(
    operator: Operator, setting: Setting, change: Callable[[Cluster], Cluster], command: str
) -> bool:
    current = _read(operator.store)
    before = setting.get(current.value)
    after = change(current.value)
    if setting.get(after) == before:
        return False
    limits = after.maintenance_limits
    if limits.leave > limits.enter:
        raise UserError(
            f"maintenance_leave ({limits.leave:g}) may not be above maintenance_enter "
            f"({limits.enter:g}): it would end and begin again at once"
        )
    entry = f"{command} (was {shown(before)})"
    return operator.change(paths.cluster(), current, after, entry)


def begin_maintenance(operator: Operator) -> None:
    """Stop all moves; replaces automatic maintenance. Raises ``UserError`` without a reason."""
    if not operator.reason:
        raise UserError("maintenance needs a --reason, which the status shows")
    current = _read(operator.store)
    maintenance = records.Maintenance(who=operator.author, why=operator.reason, since=operator.now)
    after = replace(current.value, maintenance=maintenance)
    operator.change(paths.cluster(), current, after, "cluster maintenance on")


def end_maintenance(operator: Operator) -> records.Maintenance | None:
    """End maintenance mode, and return it, or None when it was off."""
    current = _read(operator.store)
    before = current.value.maintenance
    after = replace(current.value, maintenance=None)
    operator.change(paths.cluster(), current, after, "cluster maintenance off")
    return before


def refuse_in_maintenance(store: ReadableStore) -> None:
    maintenance = _read(store).value.maintenance
    if maintenance is not None:
        raise ConflictError(
            f"maintenance mode, by {maintenance.who}: {maintenance.why}: nothing is moved until it "
            "ends (`flumeng cluster maintenance off`)"
        )


def without_chokes(store: Store, *, flow: str | None = None, node: str | None = None) -> list[Put]:
    """Return the write that removes the chokes of a flow or a node, if there are any."""
    current = _read(store)
    chokes = {
        key: rate
        for key, rate in current.value.chokes.items()
        for of_flow, _, of_node in (key.partition("@"),)
        if of_flow != flow and of_node != node
    }
    if chokes == current.value.chokes:
        return []
    return [Put(paths.cluster(), replace(current.value, chokes=chokes), current.version)]


def _read(store: ReadableStore) -> Versioned[Cluster]:
    tree.require(store)
    cluster = store.read(paths.cluster())
    if cluster is None:
        raise UserError("this chroot has no /cluster: run `flumeng schema init`")
    return cluster


def chokes(store: ReadableStore, flow: str) -> Mapping[str | None, float]:
    """Return a flow's rate limits (bytes per second of a node) by node, None for all others."""
    require_flow(store, flow)
    all_chokes = _read(store).value.chokes.items()
    named = [(*key.partition("@"), rate) for key, rate in all_chokes]
    return {node or None: rate for name, _, node, rate in named if name == flow}


def parse_rate(text: str) -> float | None:
    """Return the bytes per second of ``10MB``; None for ``off``. Raises ``UserError``."""
    if text == "off":
        return None
    try:
        return float(size(text.removesuffix("/s")))
    except ValueError as error:
        raise UserError(
            f"invalid RATE {text!r}: expected a whole number of bytes per second, such as 10MB, or "
            "off"
        ) from error


def set_choke(operator: Operator, flow: str, rate: float | None, node: str | None) -> bool:
    """Set a flow's rate limit, bytes per second or None, on ``node`` (takes precedence) or on each;
    return whether it changed. Raises ``UserError`` for an unknown name and a rate not above 0."""
    store = operator.store
    current = require_flow(store, flow)
    refuse_deleted(flow, current.value, "its sources stop, there is nothing to choke")
    there: list[Write] = [Check(paths.flow(flow), current.version)]
    if node is not None:
        version = require_node(store, node).version
        there.append(Check(paths.node(node), version))
    if rate is not None and rate <= 0:
        raise UserError("a rate limit is above 0; to let nothing through, pause the flow")
    cluster = _read(store)
    key = flow if node is None else f"{flow}@{node}"
    chokes_after = {name: limit for name, limit in cluster.value.chokes.items() if name != key}
    if rate is not None:
        chokes_after[key] = rate
    if chokes_after == cluster.value.chokes:
        return False
    limit = "off" if rate is None else f"{rate:g}"
    command = f"flow choke {flow} {limit}" + (f" --node {node}" if node else "")
    record = replace(cluster.value, chokes=chokes_after)
    operator.commit([*there, Put(paths.cluster(), record, cluster.version)], command)
    return True
