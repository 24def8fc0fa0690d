"""Chokes: rate limits of a flow in bytes per second and node, changed while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flumeng.control.commands.lookup import refuse_deleted, require_flow, require_node
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Check, Put, Store, Write
from flumeng.platform.errors import UserError
from zkschema import paths


def chokes(store: Store, flow: str) -> Mapping[str | None, float]:
    """The chokes of a flow by node; None stands for all nodes."""
    require_flow(store, flow)
    found = store.read(paths.cluster())
    known = found.value.chokes if found else {}
    named = [(*key.partition("@"), rate) for key, rate in known.items()]
    return {node or None: rate for name, _, node, rate in named if name == flow}


def set_choke(operator: Operator, flow: str, rate: float | None, node: str | None) -> bool:
    """Set the rate limit of a flow on one ``node`` or on all; None removes it. A node's own limit
    takes precedence. Returns whether it changed. Raises ``UserError`` for an unknown flow or node
    and a rate not above 0."""
    store = operator.store
    current = require_flow(store, flow)
    refuse_deleted(flow, current.value, "its sources stop, there is nothing to choke")
    there: list[Write] = [Check(paths.flow(flow), current.version)]
    if node is not None:
        version = require_node(store, node).version
        there.append(Check(paths.node(node), version))
    if rate is not None and rate <= 0:
        raise UserError("a choke lets something through: take a rate above 0, or pause the flow")
    found = store.read(paths.cluster())
    if found is None:
        raise UserError("this chroot has no /cluster: run `flumeng schema init`")
    key = flow if node is None else f"{flow}@{node}"
    wanted = {name: known for name, known in found.value.chokes.items() if name != key}
    if rate is not None:
        wanted[key] = rate
    if wanted == found.value.chokes:
        return False
    what = "off" if rate is None else f"{rate:g}"
    command = f"flow choke {flow} {what}" + (f" --node {node}" if node else "")
    record = replace(found.value, chokes=wanted)
    operator.commit([*there, Put(paths.cluster(), record, found.version)], command)
    return True
