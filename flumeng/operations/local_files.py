"""Files on a host's own disk, delivered exactly once, are collected by one host.

A batch is decided in ZooKeeper and then shown by whoever owns the task; when that is another host,
which does not see what was staged, nobody can show it.
"""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.spec import FlowSpec, parse_flow
from flumeng.spec.guarantees import local_paths
from flumeng.store import ReadableStore, Unreadable
from zkschema import paths, records

EXACTLY_ONCE = "exactly-once"
NAMED = 3


def on_several_hosts(store: ReadableStore, texts: Mapping[str, str]) -> dict[str, str]:
    """Flow -> why it may not be applied: those that several hosts may collect, although they write
    exactly once to a path which is not said to be shared."""
    specs = [parse_flow(text) for text in texts.values() if EXACTLY_ONCE in text]
    at_risk = [spec for spec in specs if spec.delivery == EXACTLY_ONCE and local_paths(spec)]
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
    """The nodes that may collect the flow."""
    return _hosts(_nodes(store), spec)


def _nodes(store: ReadableStore) -> dict[str, records.Node]:
    """Without those that cannot be read."""
    names = store.children(paths.nodes())
    found = store.read_each([paths.node(name) for name in names])
    return {
        name: node.value
        for name, node in zip(names, found, strict=True)
        if node is not None and not isinstance(node, Unreadable)
    }


def _hosts(nodes: Mapping[str, records.Node], spec: FlowSpec) -> list[str]:
    return sorted(name for name, node in nodes.items() if _may_collect(node, spec))


def _why(spec: FlowSpec, hosts: list[str]) -> str:
    more = ", ..." if len(hosts) > NAMED else ""
    return (
        f"flow {spec.flow} writes to {local_paths(spec)[0]} on the disk of the host that collects "
        f"it, and {len(hosts)} hosts may ({', '.join(hosts[:NAMED])}{more}): a batch that is "
        "decided when its host dies could not be finished elsewhere. If all of them see the same "
        "files there, say `shared: true` in the sink; else write to a URL, or let "
        "`place.collect.labels` name one host"
    )


def _may_collect(node: records.Node, spec: FlowSpec) -> bool:
    labels = spec.place.collect.labels
    return (
        records.COLLECT in node.roles
        and node.desired == "active"
        and all(node.labels.get(key) == value for key, value in labels.items())
    )
