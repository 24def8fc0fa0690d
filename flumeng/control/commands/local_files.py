"""Refuses flows that use a host's own disk although several hosts may collect them. Another host
cannot finish a decided exactly-once batch whose staged files it does not see."""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.config import FlowSpec, parse_flow
from flumeng.config.guarantees import local_paths
from flumeng.control.commands.lookup import readable_by_name
from flumeng.control.zookeeper import ReadableStore
from zkschema import paths, records

EXACTLY_ONCE = "exactly-once"
WORDS = (EXACTLY_ONCE, "objects", "answers")
"""The text of each flow at risk contains one of these words."""
NAMED = 3


def on_several_hosts(store: ReadableStore, texts: Mapping[str, str]) -> dict[str, str]:
    """Return why each refused flow is refused: several hosts would read or write a local path."""
    specs = [parse_flow(text) for text in texts.values() if any(word in text for word in WORDS)]
    at_risk = [spec for spec in specs if _reads_own_disk(spec) or _writes_own_disk(spec)]
    if not at_risk:
        return {}
    nodes = _nodes(store)
    refused = {}
    for spec in at_risk:
        hosts = _hosts(nodes, spec)
        if len(hosts) > 1:
            refused[spec.flow] = _why(spec, hosts)
    return refused


def collecting_hosts(store: ReadableStore, spec: FlowSpec) -> list[str]:
    return _hosts(_nodes(store), spec)


def collecting_nodes(store: ReadableStore, spec: FlowSpec) -> dict[str, records.Node]:
    return {name: node for name, node in _nodes(store).items() if _may_collect(node, spec)}


def _nodes(store: ReadableStore) -> dict[str, records.Node]:
    records_by_name = readable_by_name(store, paths.node, store.children(paths.nodes()))
    return {name: node.value for name, node in records_by_name.items()}


def _hosts(nodes: Mapping[str, records.Node], spec: FlowSpec) -> list[str]:
    return sorted(name for name, node in nodes.items() if _may_collect(node, spec))


def _reads_own_disk(spec: FlowSpec) -> str:
    local_paths_read = [source.options.local_path for source in spec.partitioned]
    return next(filter(None, local_paths_read), "")


def _writes_own_disk(spec: FlowSpec) -> str:
    return next(iter(local_paths(spec)), "") if spec.delivery == EXACTLY_ONCE else ""


def _why(spec: FlowSpec, hosts: list[str]) -> str:
    more = ", ..." if len(hosts) > NAMED else ""
    several = f"{len(hosts)} hosts may ({', '.join(hosts[:NAMED])}{more})"
    where = f"on the local disk of the host that collects it, and {several}"
    remedy = "or let `place.collect.labels` select one host"
    if path := _reads_own_disk(spec):
        return (
            f"flow {spec.flow} reads {path} {where}. If all of them see the same files there, set "
            f"`shared: true` in the source; {remedy}"
        )
    return (
        f"flow {spec.flow} writes to {_writes_own_disk(spec)} {where}: when it dies, no other host "
        "can finish its decided batch. If all of them see the same files there, set `shared: "
        f"true` in the sink; else write to a URL, {remedy}"
    )


def _may_collect(node: records.Node, spec: FlowSpec) -> bool:
    labels = spec.place.collect.labels
    return (
        records.COLLECT in node.roles
        and node.desired == "active"
        and all(node.labels.get(key) == value for key, value in labels.items())
    )
