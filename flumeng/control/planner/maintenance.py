"""Maintenance mode by itself: when very many nodes are missing at once it is more likely that the
network or ZooKeeper is at fault than that all of them died, and moving everything makes it worse.

It ends below a stricter threshold than it begins, so that it does not flap, and never ends what an
operator began.
"""

from __future__ import annotations

from dataclasses import replace

from flumeng.control.planner.actions import Maintain
from flumeng.control.snapshot.snapshot import Snapshot
from zkschema.records import Maintenance

AUTHOR = "flumeng"


def maintain(snapshot: Snapshot, active: int, missing: int) -> Maintain | None:
    """Begin or end it: of ``active`` nodes that are to work, ``missing`` are not live."""
    cluster, limits = snapshot.cluster, snapshot.cluster.maintenance_limits
    counts = f"{missing} of {active} active nodes are missing"
    if cluster.maintenance is None:
        if missing < max(1, limits.nodes) or missing <= limits.enter * active:
            return None
        begun = Maintenance(who=AUTHOR, why=counts, since=snapshot.now, automatic=True)
        after, why = replace(cluster, maintenance=begun), f"maintenance mode begins: {counts}"
    else:
        if not cluster.maintenance.automatic or missing > limits.leave * active:
            return None
        after, why = replace(cluster, maintenance=None), f"maintenance mode ends: {counts}"
    return Maintain(after, snapshot.cluster_version, (why,))
